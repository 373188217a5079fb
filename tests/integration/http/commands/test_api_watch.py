"""File watches over HTTP, by the inotify of the real agent."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.http.web import Web


class Changes:
    """The events of one watch."""

    def __init__(self, texts: AsyncIterator[str]) -> None:
        self._texts = texts
        self._buffer = ""
        self._last: dict[str, Any] = {}

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event: its name and its data."""
        async with asyncio.timeout(DEADLINE):
            while "\n\n" not in self._buffer:
                self._buffer += await anext(self._texts)
        block, _, self._buffer = self._buffer.partition("\n\n")
        name, data = block.split("\n")
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def change(self) -> dict[str, Any]:
        """The next event, which is a change. A change may be reported in several steps."""
        data = self._last
        while data == self._last:
            name, data = await self.next()
            assert name == "change", (name, data)
        self._last = data
        return data

    async def changes(self, *expected: dict[str, Any]) -> None:
        """Read until all of these changes are reported, in any order and maybe more than once."""
        missing = list(expected)
        while missing:
            data = await self.change()
            assert data in expected
            missing = [one for one in missing if one != data]


@asynccontextmanager
async def watch(web: Web, path: str, *, recursive: bool = False) -> AsyncIterator[Changes]:
    """Watch a directory of the box `web`."""
    await web.operations.boxes.up(ALICE, "web")
    query = {"path": path, "recursive": "true" if recursive else "false"}
    async with web.client().stream("GET", "/v1/boxes/web/watch", params=query) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Changes(answer.aiter_text())


def change(path: Path, kind: str, *, is_dir: bool = False) -> dict[str, Any]:
    """A change as the service reports it."""
    return {"path": str(path), "kind": kind, "is_dir": is_dir}


async def test_changes_of_files_are_reported(web: Web, tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    async with watch(web, str(tmp_path)) as changes:
        file.touch()
        assert await changes.change() == change(file, "created")
        file.write_text("x")
        assert await changes.change() == change(file, "modified")
        file.rename(other)
        assert await changes.change() == change(other, "moved") | {"from": str(file)}
        other.chmod(0o600)
        assert await changes.change() == change(other, "modified")
        other.unlink()
        assert await changes.change() == change(other, "removed")
        (tmp_path / "dir").mkdir()
        assert await changes.change() == change(tmp_path / "dir", "created", is_dir=True)
        (tmp_path / "dir/below").touch()
        (tmp_path / "last").touch()
        assert await changes.change() == change(tmp_path / "last", "created")


async def test_directories_below_are_watched_when_they_appear(web: Web, tmp_path: Path) -> None:
    (tmp_path / "old/deep").mkdir(parents=True)
    async with watch(web, str(tmp_path), recursive=True) as changes:
        (tmp_path / "old/deep/file").touch()
        assert await changes.change() == change(tmp_path / "old/deep/file", "created")
        (tmp_path / "new/deep").mkdir(parents=True)
        (tmp_path / "new/deep/file").touch()
        await changes.changes(
            change(tmp_path / "new", "created", is_dir=True),
            change(tmp_path / "new/deep", "created", is_dir=True),
            change(tmp_path / "new/deep/file", "created"),
        )
        (tmp_path / "old").rename(tmp_path / "moved")
        moved = change(tmp_path / "moved", "moved", is_dir=True) | {"from": str(tmp_path / "old")}
        file = change(tmp_path / "moved/deep/file", "modified")
        (tmp_path / "moved/deep/file").chmod(0o600)
        await changes.changes(moved, file)


async def test_what_leaves_the_directory_is_removed(web: Web, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "dir").mkdir(parents=True)
    outside.mkdir()
    async with watch(web, str(inside), recursive=True) as changes:
        (inside / "dir").rename(outside / "dir")
        assert await changes.change() == change(inside / "dir", "removed", is_dir=True)
        (outside / "dir/file").touch()
        (inside / "last").touch()
        assert await changes.change() == change(inside / "last", "created")


async def test_names_that_are_not_utf_8(web: Web, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff"
    async with watch(web, str(tmp_path)) as changes:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        reported = await changes.change()
        assert reported["path"] == f"{tmp_path}/\ufffd"
        assert reported["encoded_path"] == f"{tmp_path}/%FF"


async def test_the_end_of_the_directory_ends_the_watch(web: Web, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with watch(web, str(place)) as changes:
        place.rmdir()
        assert await changes.change() == change(place, "removed", is_dir=True)
        assert await changes.next() == ("end", {"reason": f"{place} was removed or moved"})


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/nothing/here", 404, "no such directory"),
        ("/etc/passwd", 400, "is not a directory"),
        ("", 400, "path"),
        ("/x" * 3000, 400, "path"),
        ("/a\0b", 400, "path"),
    ],
)
async def test_what_cannot_be_watched(web: Web, path: str, status: int, text: str) -> None:
    await web.operations.boxes.up(ALICE, "web")
    answer = await web.client().get("/v1/boxes/web/watch", params={"path": path})
    assert answer.status_code == status
    assert text in error_of(answer)
    assert (await web.client().get("/v1/boxes/web/watch")).status_code == 400
