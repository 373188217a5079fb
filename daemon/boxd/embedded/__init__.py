"""The PostgreSQL and the object server that the daemon can run itself."""
