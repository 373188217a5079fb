"""Ends of connections that tests hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def cut(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once, if it is there.

    `abort` alone fails inside asyncio for one that was closed while something was left to send, and
    that has sent it and gone since.
    """
    if writer.get_extra_info("socket").fileno() >= 0:
        writer.transport.abort()
