"""The HTTP API, proxies, previews and MCP, with clients for each."""
