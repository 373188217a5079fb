"""Servers and callers for the tests of client libraries."""
