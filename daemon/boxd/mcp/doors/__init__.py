"""The transports of MCP: Streamable HTTP, WebSocket, standard input and output."""
