"""All tools, in the order of `tools/list`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from boxd.mcp.tools.account import (
    account,
    agent,
    asks,
    canvases,
    identity,
    keys,
    profiles,
    secrets,
    workspaces,
)
from boxd.mcp.tools.boxes import background, boxes, commands, delegate, files, shares, snapshots
from boxd.mcp.tools.drive import copies, drive, trash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boxd.mcp.tools.tool import Tool

TOOLS: tuple[Tool, ...] = (
    *boxes.TOOLS,
    *snapshots.TOOLS,
    *shares.TOOLS,
    *commands.TOOLS,
    *background.TOOLS,
    *delegate.TOOLS,
    *files.TOOLS,
    *drive.TOOLS,
    *trash.TOOLS,
    *copies.TOOLS,
    *workspaces.TOOLS,
    *profiles.TOOLS,
    *secrets.TOOLS,
    *agent.TOOLS,
    *keys.TOOLS,
    *account.TOOLS,
    *identity.TOOLS,
    *canvases.TOOLS,
    *asks.TOOLS,
)

BY_NAME: Mapping[str, Tool] = MappingProxyType(
    {tool.alias: tool for tool in TOOLS} | {tool.name: tool for tool in TOOLS}
)
"""Tools by name, and by alias: the name with a dot instead of its first underscore."""
