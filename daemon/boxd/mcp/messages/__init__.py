"""Messages of MCP: parsing, encoding, queues, and server-sent events."""
