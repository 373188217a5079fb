"""Watches of directories. Nothing runs between two changes here, so they are joined for sure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from box_guest.process import file_watch
from box_guest.process.file_watch import FileWatch
from box_guest.shared.requests import CONFLICT, FULL, MISSING, Refused
from box_guest.shared.watch_messages import FileEvent
from tests.harness.wait import until


class Watched:
    """A watch of a directory, and the events that it has sent."""

    def __init__(self, path: Path, *, recursive: bool = True, limit: int = 100) -> None:
        self.events: list[FileEvent] = []
        self.path = path
        self.watch = FileWatch(
            os.fsencode(path), recursive=recursive, send=self.events.append, limit=limit
        )

    async def settled(self) -> list[FileEvent]:
        """Make a last change, wait for it, and return the events before it."""
        (self.path / "last").touch()
        await until(lambda: any(event.path.endswith("/last") for event in self.events))
        self.watch.close()
        return [event for event in self.events if not event.path.endswith("/last")]


async def test_changes_of_one_path_are_joined(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    (tmp_path / "passing").touch()
    (tmp_path / "passing").unlink()
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").rename(tmp_path / "final")
    assert await watched.settled() == [FileEvent("created", f"{tmp_path}/final")]


async def test_moves_are_joined(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    watched = Watched(tmp_path)
    (tmp_path / "a").rename(tmp_path / "a1")
    (tmp_path / "a1").write_text("x")
    (tmp_path / "a1").rename(tmp_path / "a2")
    (tmp_path / "b").rename(tmp_path / "b1")
    (tmp_path / "b1").unlink()
    (tmp_path / "c").unlink()
    (tmp_path / "c").touch()
    assert await watched.settled() == [
        FileEvent("moved", f"{tmp_path}/a2", source=f"{tmp_path}/a"),
        FileEvent("removed", f"{tmp_path}/b"),
        FileEvent("modified", f"{tmp_path}/c"),
    ]


async def test_a_tree_that_appears_is_reported_as_a_whole(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").touch()
    assert await watched.settled() == [
        FileEvent("created", f"{tmp_path}/d", True),
        FileEvent("created", f"{tmp_path}/d/e", True),
        FileEvent("created", f"{tmp_path}/d/e/f"),
    ]


async def test_a_slow_reader_loses_changes_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "MAX_PENDING", 3)
    watched = Watched(tmp_path)
    watched.watch.pause()
    for number in range(5):
        (tmp_path / str(number)).touch()
    watched.watch.resume()
    await until(lambda: FileEvent("overflow") in watched.events)
    assert [event.path for event in watched.events[:-1]] == [f"{tmp_path}/{n}" for n in range(3)]
    assert await watched.settled()


async def test_too_many_directories_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(Refused, match="more directories than a watch may have") as refused:
        Watched(tmp_path, limit=3)
    assert refused.value.kind == FULL
    watched = Watched(tmp_path, recursive=False, limit=3)
    assert watched.watch.watches == 1
    watched.watch.close()


async def test_a_tree_that_grows_too_large_ends_the_watch(tmp_path: Path) -> None:
    watched = Watched(tmp_path, limit=2)
    (tmp_path / "a/b/c").mkdir(parents=True)
    await until(lambda: watched.events and watched.events[-1].kind == "end")
    assert "more directories than a watch may have" in watched.events[-1].reason


async def test_fuse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "file_system", lambda _device: b"fuse.wrk")
    with pytest.raises(Refused, match="does not report changes made elsewhere") as refused:
        Watched(tmp_path)
    assert refused.value.kind == CONFLICT


async def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such directory") as refused:
        Watched(tmp_path / "none")
    assert refused.value.kind == MISSING


def test_the_type_of_a_file_system(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 0:21 / /sys rw,nosuid - sysfs sysfs rw\n"
        "90 22 0:55 / /wrk rw shared:3 master:1 - fuse.wrk wrk rw,user_id=0\n"
        "broken\n"
    )
    assert file_watch.file_system(os.makedev(0, 55), str(table)) == b"fuse.wrk"
    assert file_watch.file_system(os.makedev(0, 56), str(table)) == b""
    assert file_watch.file_system(Path("/proc").stat().st_dev) == b"proc"
