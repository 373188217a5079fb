"""Doors in the box to the stores of its drive: who knocks is let in, also after one that failed."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from box_guest import protocol
from box_guest.drive import store_doors
from box_guest.drive.store_doors import PG_SOCKET, StoreEndpoints
from tests.harness.wait import until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from box_guest.ssh.forward import DriveGate


class Gate:
    """Takes what comes in, and is done with it at once."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    async def pass_on(self, path: str, accepted: socket.socket, over: Callable[[], None]) -> None:
        """Counts it."""
        accepted.close()
        self.passed.append(path)
        over()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: names of sockets are."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made) / "gate"


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EMFILE])
async def test_a_door_outlives_what_fails_at_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    loop, gate, tasks = asyncio.get_running_loop(), Gate(), set[asyncio.Task[None]]()
    accept, failing = loop.sock_accept, [OSError(number, "no")] * (store_doors.AT_ONCE + 1) * 2

    async def fails(door: socket.socket) -> tuple[socket.socket, Any]:
        if failing:
            raise failing.pop()
        return await accept(door)

    def background(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.create_task(work))

    monkeypatch.setattr(store_doors, "PACE_S", 0)
    monkeypatch.setattr(loop, "sock_accept", fails)
    doors = StoreEndpoints(cast("DriveGate", gate), directory, background)
    doors.open()
    _, writer = await asyncio.open_unix_connection(directory / PG_SOCKET)
    await until(lambda: gate.passed == [protocol.DRIVE_META])
    writer.close()
    await doors.close()
    assert not (directory / PG_SOCKET).exists()
