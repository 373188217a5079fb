"""Ends of connections that tests hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def cut(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, if it exists.

    `abort` alone fails inside asyncio for a connection that was closed with unsent data and has
    ended since.
    """
    if writer.get_extra_info("socket").fileno() >= 0:
        writer.transport.abort()
