"""The transports of MCP: Streamable HTTP, WebSocket, and standard input and output."""
