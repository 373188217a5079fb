"""Boxes sleep and wake while processes of the host have copies or files of their roots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import overlays
from boxd.backends.interface import BackendBox
from boxd.errors import RootHeld

if TYPE_CHECKING:
    from tests.harness.boxes.suspending import Sleepy
    from tests.plugins.strict_logs import AssertLogs

pytestmark = pytest.mark.timeout(300)


async def test_a_box_wakes_while_a_process_has_a_private_copy_of_all_mounts(
    sleepy: Sleepy,
) -> None:
    guest = await sleepy.guest()
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        for _ in range(2):
            asleep = await sleepy.suspend(guest)
            await sleepy.resume(guest)
            assert (await guest.goes_on(asleep["tick"]))["nonce"] == asleep["nonce"]
        await sleepy.host.backend.stop(guest.box)
        await sleepy.host.backend.start(guest.box)
    finally:
        await process.communicate(b"")


async def test_a_suspension_that_leaves_a_root_in_use_fails_and_loses_nothing(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(overlays, "_BUSY_TIMEOUT", 0.1)
    guest = await sleepy.guest()
    backend, box = sleepy.host.backend, guest.box
    root = sleepy.host.names.paths(box).root
    with (root / "etc/passwd").open():
        await backend.freeze(box)
        asleep = guest.state()
        await backend.save_memory(box)
        with (
            assert_logs("still used by process"),
            pytest.raises(RootHeld, match="stopped, but cannot start yet: a process of the host"),
        ):
            await backend.stop(box)
        assert await backend.list() == [BackendBox(box, running=False, memory=True)]
        with (
            assert_logs("still used by process"),
            pytest.raises(RootHeld, match="cannot be mounted: Device or resource busy"),
        ):
            await sleepy.resume(guest)
    monkeypatch.undo()
    await sleepy.resume(guest)
    assert (await guest.goes_on(asleep["tick"]))["nonce"] == asleep["nonce"]
