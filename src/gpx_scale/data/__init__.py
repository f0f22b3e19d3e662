"""Checked rows in standardised units, made of what a user gives."""
