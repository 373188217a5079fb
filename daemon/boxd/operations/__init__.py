"""The operations of the service.

SSH, HTTP and MCP call these and nothing below them; `boxd.authz` decides what a caller may do.
"""

from boxd.model.view import BoxView, NextAct
from boxd.operations.operations import Dependencies, Operations

__all__ = ["BoxView", "Dependencies", "NextAct", "Operations"]
