"""Control-plane state in PostgreSQL."""
