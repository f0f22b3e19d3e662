"""Run the command by `python -m gpx_scale.cli`."""

import sys

from . import main

sys.exit(main())
