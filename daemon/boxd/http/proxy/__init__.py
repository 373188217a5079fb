"""Ports of boxes over HTTP: the proxy, its cookie, and preview hosts."""
