"""Measures a command's timeout from its first output, so a slow start does not count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.boxes.commands.exec import ExecRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest


def time_from_first_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start `timeout_s` only after the command has written its first output."""
    pump, limit = ExecRun.pump, ExecRun._limit
    said = asyncio.Event()

    async def listening(self: ExecRun, emit: Callable[[str, bytes], Awaitable[None]]) -> int:
        async def heard(stream: str, data: bytes) -> None:
            await emit(stream, data)
            said.set()

        return await pump(self, heard)

    async def late(self: ExecRun) -> None:
        await said.wait()
        await limit(self)

    monkeypatch.setattr(ExecRun, "pump", listening)
    monkeypatch.setattr(ExecRun, "_limit", late)
