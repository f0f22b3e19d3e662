"""Model files, which are read without running code."""
