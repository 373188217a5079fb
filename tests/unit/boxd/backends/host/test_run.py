"""Host tools."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.run import CommandFailed, last_words, run, run_silent
from boxd.errors import Unavailable
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_output_and_input() -> None:
    assert await run("cat", stdin="hello") == "hello"
    assert await run("cat") == ""


async def test_failures_tell_the_tools_words() -> None:
    with pytest.raises(CommandFailed, match="sh failed with status 3: broken") as caught:
        await run("sh", "-c", "echo broken >&2; exit 3")
    assert caught.value.status == 3
    with pytest.raises(CommandFailed, match="on stdout"):
        await run("sh", "-c", "echo on stdout; exit 1")


async def test_absent_tools() -> None:
    with pytest.raises(Unavailable, match="absent-tool is not installed"):
        await run("absent-tool")
    with pytest.raises(Unavailable, match="absent-tool is not installed"):
        await run_silent("absent-tool")


async def test_time_is_bounded() -> None:
    with pytest.raises(Unavailable, match="did not end"):
        await run("sleep", "60", timeout=0.05)
    with pytest.raises(Unavailable, match="did not end"):
        await run_silent("sleep", "60", timeout=0.05)


async def test_a_cancelled_tool_is_dead() -> None:
    task = asyncio.create_task(run("sleep", "60"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_silent_status() -> None:
    assert await run_silent("sh", "-c", "echo x; exit 4") == 4


async def test_the_daemons_environment_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "secret")
    assert "CANARY" not in await run("env")


async def test_what_a_tool_has_started_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def heard() -> bytes | None:
        """Empty when nobody can write, None when somebody could and does not."""
        with suppress(BlockingIOError):
            return os.read(reader, 16)
        return None

    script = f"(exec >{fifo}; echo begun; sleep 60) & wait"
    task = asyncio.create_task(run_silent("sh", "-c", script, alone=True))
    try:
        await until(lambda: heard() == b"begun\n")
        assert heard() is None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: heard() == b"")
    finally:
        os.close(reader)


async def test_tools_of_a_directory_come_first(tmp_path: Path) -> None:
    (tmp_path / "cat").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "cat").chmod(0o755)
    assert await run_silent("sh", "-c", "cat /dev/null", first=tmp_path) == 7
    assert await run_silent("sh", "-c", "cat /dev/null") == 0


def test_the_last_message_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == "it reported no error"
    log.write_text('{"msg": "first"}\n{"msg": "last"}\n{"level": "x"}\ncut {"ms\n')
    assert last_words(log) == "last"
    log.write_text('{"msg": "a\\u001b[2Jb\\nc"}\n')
    assert last_words(log) == "a\\x1b[2Jb\\nc"
    log.write_text("\n")
    assert last_words(log) == "it reported no error"
