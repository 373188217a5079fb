"""Host tools."""

from __future__ import annotations

import asyncio

import pytest

from boxd.backends.run import CommandFailed, run, run_silent
from boxd.errors import Unavailable


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
