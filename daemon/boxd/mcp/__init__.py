"""The MCP plane: tools and resources of an owner over JSON-RPC, behind three doors.

`plane` is what the doors are given; the protocol's library is loaded with the first client.
"""
