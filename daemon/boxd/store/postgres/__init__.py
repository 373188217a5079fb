"""The control store in PostgreSQL, one group of tables per module."""
