"""Functions on a box for inputs of one to three columns."""
