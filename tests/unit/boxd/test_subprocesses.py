"""Killing a process that asyncio started."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from boxd.subprocesses import kill


async def test_a_kill_leaves_the_exit_status_to_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll would take the status of a process that has just ended."""

    def poll(_process: object) -> None:
        pytest.fail("the process was polled")

    process = await asyncio.create_subprocess_exec("sleep", "60")
    monkeypatch.setattr(subprocess.Popen, "poll", poll)
    kill(process)
    assert await process.wait() == -signal.SIGKILL
    kill(process)
