"""The solver with functions on a box, for inputs of one to three columns."""
