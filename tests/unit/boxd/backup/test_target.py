"""Targets: one contract for directories and S3, names of archives, retention."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
import stat
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

import pytest

from boxd.backup import target as targets
from boxd.backup.s3 import S3Target
from boxd.backup.target import (
    DirectoryTarget,
    Target,
    archive_name,
    archive_names,
    dated_after,
    expired,
    newest,
    split_source,
)
from boxd.backup.target_url import open_target
from boxd.errors import BadRequest, Conflict, NotFound, Unavailable
from boxd.workspaces.credentials import ExternalStore
from tests.harness.service.backup_target import store_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OURS, THEIRS = "a" * 32, "b" * 32
PART = 5 << 20


@pytest.fixture(params=["directory", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """An empty target."""
    if request.param == "directory":
        (tmp_path / "kept").mkdir()
        return DirectoryTarget(tmp_path / "kept")
    server: ObjectServer = request.getfixturevalue("objectserver")
    url = f"s3://{server.endpoint.bucket}/backups-{secrets.token_hex(4)}"
    return S3Target(url, ExternalStore.from_file(store_file(tmp_path, server)), part=PART)


async def put(target: Target, name: str, content: bytes) -> None:
    """Keeps some bytes."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        await target.put(name, file)


async def got(target: Target, name: str) -> bytes:
    """What is kept."""
    file = io.BytesIO()
    await target.get(name, file)
    return file.getvalue()


async def test_archives_are_kept_listed_and_removed(target: Target) -> None:
    assert await target.names() == []
    names = [archive_name(OURS, WHEN + timedelta(days=day)) for day in range(3)]
    for number, name in enumerate(reversed(names)):
        await put(target, name, bytes([number]) * 1000)
    await put(target, "else", b"not an archive")
    assert await target.names() == names
    assert await got(target, names[0]) == b"\2" * 1000
    await target.remove(names[1])
    await target.remove(names[1])
    assert await target.names() == [names[0], names[2]]
    with pytest.raises(NotFound, match=names[1]):
        await got(target, names[1])


async def test_an_archive_of_many_parts(target: Target) -> None:
    content = secrets.token_bytes(1 << 20) * 11 + b"end"
    name = archive_name(OURS, WHEN)
    await put(target, name, content)
    assert await got(target, name) == content


async def test_what_cannot_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = DirectoryTarget(tmp_path)

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(Unavailable, match=f"{tmp_path}: No space left"):
            await put(target, archive_name(OURS, WHEN), b"x")
    assert list(tmp_path.iterdir()) == []


async def test_archives_in_a_directory_are_private(tmp_path: Path) -> None:
    name = archive_name(OURS, WHEN)
    await put(DirectoryTarget(tmp_path), name, b"x")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_what_a_killed_backup_left_goes_with_a_later_one(tmp_path: Path) -> None:
    old, young = (tmp_path / f".{archive_name(one, WHEN)}.part" for one in (OURS, THEIRS))
    for path in (old, young):
        path.touch()
    age = old.stat().st_mtime - targets.ABANDONED_S - 60
    os.utime(old, (age, age))
    await put(DirectoryTarget(tmp_path), archive_name(OURS, WHEN), b"x")
    assert not old.exists()
    assert young.exists()


async def test_a_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "mnt")
    with pytest.raises(Unavailable, match="mount its file system"):
        await put(target, archive_name(OURS, WHEN), b"x")
    with pytest.raises(Unavailable, match="mount its file system"):
        await target.names()
    assert not (tmp_path / "mnt").exists()


async def test_an_s3_that_refuses_is_told_without_its_credential(
    tmp_path: Path, objectserver: ObjectServer
) -> None:
    wrong = "c" * 40
    admin = {"access_key": objectserver.endpoint.access_key, "secret_key": wrong}
    path = store_file(tmp_path, objectserver, admin=admin)
    target = open_target(f"s3://{objectserver.endpoint.bucket}/x", path)
    for work in (put(target, archive_name(OURS, WHEN), b"x"), target.names()):
        with pytest.raises(Unavailable, match=r"cannot (write to|list) s3://") as caught:
            await work
        assert wrong not in str(caught.value)
    nowhere = store_file(tmp_path, objectserver, endpoint="http://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"at http://127\.0\.0\.1:1"):
        await open_target("s3://bucket/x", nowhere).names()


def test_places_that_make_no_sense_are_refused(tmp_path: Path, objectserver: ObjectServer) -> None:
    path = store_file(tmp_path, objectserver)
    with pytest.raises(BadRequest, match="--backup-store-file"):
        open_target("s3://bucket/x", None)
    for url in ("s3://", "s3:///x", "s3://bucket/x?y=z", "https://example.org/x"):
        with pytest.raises(BadRequest, match="s3://BUCKET/PREFIX"):
            open_target(url, path)
    path.chmod(0o644)
    with pytest.raises(Unavailable, match="chmod 600"):
        open_target("s3://bucket/x", path)


def test_the_newest_is_chosen_but_not_between_services() -> None:
    old, new = (archive_name(OURS, WHEN + timedelta(days=day)) for day in (0, 1))
    assert newest(archive_names([new, "x", old]), "/mnt") == new
    with pytest.raises(NotFound, match="no backup in /mnt"):
        newest([], "/mnt")
    with pytest.raises(Conflict, match="several services"):
        newest([old, archive_name(THEIRS, WHEN)], "/mnt")


def test_retention_takes_the_oldest_of_this_service_only() -> None:
    ours = [archive_name(OURS, WHEN + timedelta(days=day)) for day in range(4)]
    names = archive_names([*ours, archive_name(THEIRS, WHEN - timedelta(days=9))])
    assert expired(names, ours[3], 3) == ours[:1]
    assert expired(names, ours[3], 4) == []
    assert expired(names, ours[3], 1) == ours[:3]
    assert dated_after(names, ours[3]) == []


def test_retention_spares_what_was_made_before_the_times_of_others() -> None:
    ours = [archive_name(OURS, WHEN + timedelta(days=day)) for day in range(4)]
    names = archive_names([*ours, archive_name(THEIRS, WHEN + timedelta(days=9))])
    assert expired(names, ours[1], 2) == ours[:1]
    assert dated_after(names, ours[1]) == ours[2:]


def test_a_source_is_a_place_or_one_archive() -> None:
    name = archive_name(OURS, WHEN)
    assert split_source("/mnt/kept") == ("/mnt/kept", None)
    assert split_source(f"s3://b/p/{name}") == ("s3://b/p", name)
    assert split_source(name) == (".", name)
    with pytest.raises(BadRequest, match="not named"):
        split_source("/mnt/other.backup")
