"""What failures of a dump and a restore mean, by a runc that writes CRIU's log; and the lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.backends import checkpoint
from boxd.backends.hostnames import BoxPaths
from boxd.errors import BoxdError, Conflict, DiskFull, Unavailable
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

RUNC = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    checkpoint) log=dump.log ;;
    restore) log=restore.log ;;
    --work-path) work=$2 ;;
  esac
  shift
done
printf '%s\\n' "{log}" > "$work/$log"
exit 1
"""
SECOND = """#!/bin/sh
[ ! -e {once} ] || exit 0
: > {once}
"""
"""In front of RUNC: the second try succeeds."""
NOT_BEGUN = "(00.1) Error (k.c:1): kerndat_has_x failed when initializing kerndat."
REFUSED = "(00.1) Error (s.c:1): no such thing can be kept"
FULL = "(00.1) Error (i.c:1): Can't write: No space left on device"
LATE = "(00.1) Restore finished. Tasks resumed.\\n(00.2) Error (x.c:1): late"


@pytest.fixture
def paths(tmp_path: Path) -> BoxPaths:
    """Of a box with a directory and nothing in it."""
    (tmp_path / "box").mkdir()
    return BoxPaths(tmp_path / "box")


def tools(tmp_path: Path, log: str) -> checkpoint.Tools:
    """A runc that fails with that log of CRIU."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "runc").write_text(RUNC.replace("{log}", log))
    (place / "runc").chmod(0o755)
    return checkpoint.Tools(place / "criu", tmp_path / "runc")


@pytest.mark.parametrize(
    ("log", "error", "words"),
    [
        (NOT_BEGUN, Unavailable, "cannot begin on this host"),
        (REFUSED, Conflict, "no such thing can be kept"),
        (FULL, DiskFull, "no room"),
    ],
)
async def test_dumps(
    tmp_path: Path, paths: BoxPaths, log: str, error: type[BoxdError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await checkpoint.dump(tools(tmp_path, log), "b", paths, tmp_path, drive=False)


@pytest.mark.parametrize(("log", "repeatable"), [(REFUSED, True), (LATE, False)])
async def test_restores(tmp_path: Path, paths: BoxPaths, log: str, repeatable: bool) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(checkpoint.RestoreFailed) as failure:
        await checkpoint.restore(tools(tmp_path, log), "b", paths, tmp_path, mark, drive=None)
    assert failure.value.repeatable is repeatable
    assert mark.exists()


async def test_what_was_not_begun_costs_no_memory(tmp_path: Path, paths: BoxPaths) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(Unavailable, match="cannot begin"):
        await checkpoint.restore(tools(tmp_path, NOT_BEGUN), "b", paths, tmp_path, mark, drive=None)
    assert not mark.exists()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PAUSE", 0.01)


async def test_what_was_not_begun_is_tried_again(tmp_path: Path, paths: BoxPaths) -> None:
    mark, found = tmp_path / "mark", tools(tmp_path, NOT_BEGUN)
    runc = found.criu.parent / "runc"
    for once, work in (
        ("dump", checkpoint.dump(found, "b", paths, tmp_path, drive=False)),
        ("restore", checkpoint.restore(found, "b", paths, tmp_path, mark, drive=None)),
    ):
        failing = runc.read_text()
        runc.write_text(SECOND.format(once=tmp_path / once) + failing)
        await work
        runc.write_text(failing)
    assert mark.exists()


async def test_who_does_not_end_is_ended(paths: BoxPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with checkpoint.alone_with(paths) as descriptor:
        holder = await asyncio.create_subprocess_exec("sleep", "600", pass_fds=(descriptor,))
    monkeypatch.setattr(checkpoint, "BUSY_TIMEOUT", 0.05)
    async with checkpoint.alone_with(paths):
        await until(lambda: holder.returncode is not None)


async def test_who_ends_is_waited_for(paths: BoxPaths) -> None:
    async with checkpoint.alone_with(paths) as descriptor:
        holder = await asyncio.create_subprocess_exec("sleep", "0.2", pass_fds=(descriptor,))
    async with checkpoint.alone_with(paths):
        assert await holder.wait() == 0
