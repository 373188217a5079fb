"""The MCP plane, through its doors."""
