"""Models as files that are read without running code."""
