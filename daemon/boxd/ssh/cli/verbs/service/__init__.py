"""Verbs for what the service offers: catalogs, client configuration and MCP."""
