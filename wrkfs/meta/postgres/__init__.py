"""The metadata store in PostgreSQL: one SQL function per operation."""
