"""The way from the data that a user gives to checked rows in standardised units."""
