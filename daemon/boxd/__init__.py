"""The service: box lifecycle, SSH listener, HTTP server, MCP service."""
