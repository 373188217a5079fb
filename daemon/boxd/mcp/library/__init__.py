"""The bridge between our transports and the MCP library."""
