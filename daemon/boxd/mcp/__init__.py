"""The MCP service: an owner's tools and resources over JSON-RPC, through three transports.

`service` is the entry point of the transports. The first client loads the MCP library.
"""
