"""The solver with interpolation on a grid, for inputs of one to three columns."""
