"""The bridge between the transports and the MCP library."""
