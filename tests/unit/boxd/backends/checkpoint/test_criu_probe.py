"""The self-test's process, run here as it is run in its box."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from boxd.backends.checkpoint import criu_probe
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def probe(root: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs it with that root."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", criu_probe.__file__),
        cwd=root,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def state(root: Path) -> dict[str, Any]:
    """What it says; nothing is counted before it says something."""
    try:
        found: dict[str, Any] = json.loads((root / "state").read_text())
    except FileNotFoundError:
        return {"count": 0, "seen": []}
    return found


async def test_it_counts_and_sees(tmp_path: Path) -> None:
    for place in criu_probe.WATCHED:
        (tmp_path / place).mkdir()
    async with probe(tmp_path) as process:
        await until(lambda: state(tmp_path)["count"] > 0)
        first = state(tmp_path)
        assert first["pid"] == process.pid
        for place in criu_probe.WATCHED:
            (tmp_path / place / "news").touch()
            (tmp_path / place / "more").touch()
        await until(lambda: len(state(tmp_path)["seen"]) == 4)
        later = state(tmp_path)
        assert later["count"] > first["count"]
        assert later["nonce"] == first["nonce"]
        assert sorted(later["seen"]) == [
            *("watched/more", "watched/news", "wrk/more", "wrk/news"),
        ]


async def test_it_ends_without_its_directories(tmp_path: Path) -> None:
    async with probe(tmp_path) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"inotify" in errors
