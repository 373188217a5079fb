"""What failures of a dump and a restore mean, by a runc that writes CRIU's log; and the lock."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import dump_restore
from boxd.backends.checkpoint.restore_gate import Steps
from boxd.backends.host.names import BoxPaths
from boxd.backends.host.run import ENVIRONMENT
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
[ ! -e {once} ] || exec {python} -c '
import os, socket
gate = socket.socket(socket.AF_UNIX)
os.chdir("{box}/relay")
gate.connect("gate")
gate.sendall(b"check 7\\n")
assert gate.recv(9) == b"go"
'
: > {once}
"""
"""In front of RUNC: the second try asks for the permission and succeeds."""
NOT_BEGUN = "(00.1) Error (k.c:1): kerndat_has_x failed when initializing kerndat."
REFUSED = "(00.1) Error (s.c:1): no such thing can be kept"
FULL = "(00.1) Error (i.c:1): Can't write: No space left on device"
LATE = "(00.1) Restore finished. Tasks resumed.\\n(00.2) Error (x.c:1): late"


@pytest.fixture
def paths(tmp_path: Path) -> BoxPaths:
    """Of a box with a directory and nothing in it."""
    (tmp_path / "box").mkdir()
    return BoxPaths(tmp_path / "box", tmp_path / "mounts")


def tools(tmp_path: Path, log: str) -> dump_restore.Tools:
    """A runc that fails with that log of CRIU."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "runc").write_text(RUNC.replace("{log}", log))
    (place / "runc").chmod(0o755)
    return dump_restore.Tools(place / "criu", tmp_path / "runc", tmp_path / "masks")


async def restore(found: dump_restore.Tools, paths: BoxPaths, mark: Path) -> None:
    """A restore that no check refuses."""
    saved = dump_restore.Saved(paths.directory.parent, mark, "/i/b", None)
    await dump_restore.restore(found, "b", paths, saved, steps=Steps(lambda _: asyncio.sleep(0)))


@pytest.mark.parametrize(
    ("log", "error", "words"),
    [
        (NOT_BEGUN, Unavailable, "cannot start on this host"),
        (REFUSED, Conflict, "no such thing can be kept"),
        (FULL, DiskFull, "no room"),
    ],
)
async def test_dumps(
    tmp_path: Path, paths: BoxPaths, log: str, error: type[BoxdError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await dump_restore.dump(
            tools(tmp_path, log), "b", paths, tmp_path, drive=False, own_users=False
        )


@pytest.mark.parametrize(("log", "repeatable"), [(REFUSED, True), (LATE, False)])
async def test_restores(tmp_path: Path, paths: BoxPaths, log: str, repeatable: bool) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(dump_restore.RestoreFailed) as failure:
        await restore(tools(tmp_path, log), paths, mark)
    assert failure.value.repeatable is repeatable
    assert mark.exists() is not repeatable


async def test_a_restore_without_a_check_has_failed(tmp_path: Path, paths: BoxPaths) -> None:
    mark, found = tmp_path / "mark", tools(tmp_path, LATE)
    runc = found.criu.parent / "runc"
    runc.write_text(runc.read_text().replace("exit 1", "exit 0"))
    with pytest.raises(dump_restore.RestoreFailed) as failure:
        await restore(found, paths, mark)
    assert not failure.value.repeatable
    assert mark.exists()


async def test_what_was_not_begun_costs_no_memory(tmp_path: Path, paths: BoxPaths) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(Unavailable, match="cannot start"):
        await restore(tools(tmp_path, NOT_BEGUN), paths, mark)
    assert not mark.exists()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_restore, "PAUSE", 0.01)


@pytest.fixture(autouse=True)
def _finds_our_runc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(ENVIRONMENT, "PATH", f"{tmp_path}/bin:{ENVIRONMENT['PATH']}")


async def test_what_was_not_begun_is_tried_again(tmp_path: Path, paths: BoxPaths) -> None:
    mark, found = tmp_path / "mark", tools(tmp_path, NOT_BEGUN)
    runc = found.criu.parent / "runc"
    failing, once = runc.read_text(), tmp_path / "dump"
    runc.write_text(f"#!/bin/sh\n[ ! -e {once} ] || exit 0\n: > {once}\n" + failing)
    await dump_restore.dump(found, "b", paths, tmp_path, drive=False, own_users=False)
    words = {"once": tmp_path / "restore", "python": sys.executable, "box": paths.directory}
    runc.write_text(SECOND.format(**words) + failing)
    await restore(found, paths, mark)


async def test_who_does_not_end_is_ended(paths: BoxPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with dump_restore.alone_with(paths) as descriptor:
        holder = await asyncio.create_subprocess_exec("sleep", "600", pass_fds=(descriptor,))
    monkeypatch.setattr(dump_restore, "BUSY_TIMEOUT", 0.05)
    async with dump_restore.alone_with(paths):
        await until(lambda: holder.returncode is not None)


async def test_who_ends_is_waited_for(paths: BoxPaths) -> None:
    async with dump_restore.alone_with(paths) as descriptor:
        holder = await asyncio.create_subprocess_exec("sleep", "0.2", pass_fds=(descriptor,))
    async with dump_restore.alone_with(paths):
        assert await holder.wait() == 0
