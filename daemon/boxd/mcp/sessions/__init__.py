"""Sessions of MCP clients, and the notifications they subscribe to."""
