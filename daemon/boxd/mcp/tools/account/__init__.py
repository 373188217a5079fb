"""Tools that work with the objects of an account."""
