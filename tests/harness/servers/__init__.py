"""PostgreSQL and the object server, proxies in front of them, and failures."""
