"""What pytest leaves alone here: scripts of the gallery, which run where they are imported, and all that is built."""

import os

os.environ.setdefault("MPLBACKEND", "agg")
collect_ignore = ["conf.py", "gallery", "auto_gallery", "_build"]
