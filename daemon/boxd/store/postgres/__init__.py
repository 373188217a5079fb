"""The control store in PostgreSQL, one group of tables a file."""
