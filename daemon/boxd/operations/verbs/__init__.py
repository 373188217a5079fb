"""The registry of verbs: what users can do, and the names of it at SSH, HTTP and MCP."""
