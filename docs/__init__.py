"""A package for pytest's sake: so the conftest here is not taken for that of the tests."""
