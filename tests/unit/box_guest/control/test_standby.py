"""How the agent knows that it is wanted again."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from box_guest.control import standby
from tests.mount.posix.tree import next_tick

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tunnel's socket is; nothing waits for long."""
    monkeypatch.setattr(standby, "TICK_S", 0.001)
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "s")
    return tmp_path / "s"


def make(path: Path) -> None:
    """A listener of its own making; the socket's path may be long, its name is not."""
    path.unlink(missing_ok=True)
    next_tick()  # its number is given again, and many kernels know no finer time
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def test_each_making_is_another(place: Path) -> None:
    first = standby.place(place)
    assert first == standby.place(place)
    make(place)
    assert standby.place(place) not in (first, None)
    place.unlink()
    assert standby.place(place) is None


async def test_a_new_socket_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "QUIET_S", 60.0)
    waiting = asyncio.create_task(standby.until_made_anew(place, standby.place(place)))
    place.unlink()
    await asyncio.sleep(0.02)
    assert not waiting.done()
    make(place)
    async with asyncio.timeout(20):
        await waiting


async def test_quiet_ends_by_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "QUIET_S", 0.02)
    async with asyncio.timeout(20):
        await standby.until_made_anew(place, standby.place(place))


async def test_pauses_leave_no_timer(place: Path) -> None:
    await standby.pause(0.001)
    pausing = asyncio.create_task(standby.pause(60))
    await asyncio.sleep(0)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    pausing.cancel()
    await asyncio.gather(pausing, return_exceptions=True)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("lost", ["the interval timer", "the moment"])
async def test_a_pause_ends_also_when_one_of_its_clocks_is_lost(
    place: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    if lost == "the moment":
        loop = asyncio.get_running_loop()
        later = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda _, due: later(3600, due))
    else:
        monkeypatch.setattr(signal, "setitimer", lambda *_: None)
    async with asyncio.timeout(20):
        await standby.pause(0.01)


def test_trimming_is_harmless() -> None:
    kept = bytearray(b"x") * (1 << 20)
    standby.trim_memory()
    assert kept == b"x" * (1 << 20)
