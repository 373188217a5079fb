"""PostgreSQL and the object server, proxies before them, and failures."""
