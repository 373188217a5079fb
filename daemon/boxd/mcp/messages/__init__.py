"""MCP messages: parsing, encoding, queues, and server-sent events."""
