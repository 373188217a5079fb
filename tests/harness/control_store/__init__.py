"""Rows for tests of the control store."""
