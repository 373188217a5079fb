"""The control store: the persistent state of the daemon, in PostgreSQL."""
