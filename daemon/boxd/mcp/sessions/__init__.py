"""Sessions of MCP clients, and their resource subscriptions."""
