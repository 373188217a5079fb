"""What a mount process says of itself, however it says it."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from box_guest.drive.workspace import BoxDrive
from boxd.workspaces import health

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from box_guest.process.process import Reaper
    from box_guest.ssh.forward import DriveGate

    Ask = Callable[[Path], Awaitable[dict[str, object]]]

WHOLE = b'{"health": "ok", "dirty_bytes": 7}\n'


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: names of sockets are."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


async def by_the_box(directory: Path) -> dict[str, object]:
    """Asked by the agent of a box that mounts its drive itself."""
    gate, reaper = cast("DriveGate", None), cast("Reaper", None)
    return await BoxDrive(gate, reaper, lambda work: work.close(), directory=directory)._health()


async def by_the_daemon(directory: Path) -> dict[str, object]:
    """Asked on the host."""
    return await health.ask(directory / "status")


async def heard(directory: Path, ask: Ask, said: Iterable[bytes]) -> dict[str, object]:
    """What is made of an answer that comes in these pieces."""
    over = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in said:
            writer.write(piece)
            for _turn in range(5):  # by then who asks has read it
                await asyncio.sleep(0)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_unix_server(answer, directory / "status"):
        found = await ask(directory)
        await over.wait()
        return found


@pytest.mark.parametrize("ask", [by_the_box, by_the_daemon])
async def test_an_answer_may_come_in_pieces(directory: Path, ask: Ask) -> None:
    pieces = [WHOLE[number : number + 1] for number in range(len(WHOLE))]
    assert await heard(directory, ask, pieces) == {"health": "ok", "dirty_bytes": 7}


DEEP = b"[" * (health.MAX_ANSWER - 1) + b"\n"
"""More levels than a parser takes."""


@pytest.mark.parametrize("said", [b"", b"[]\n", b"x" * (health.MAX_ANSWER + 1), WHOLE[:9], DEEP])
@pytest.mark.parametrize("ask", [by_the_box, by_the_daemon])
async def test_what_is_no_answer_is_none(directory: Path, ask: Ask, said: bytes) -> None:
    assert await heard(directory, ask, [said]) in ({}, {"health": health.SILENT})
