"""Archives between this machine and a box that may be hostile."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from typing import TYPE_CHECKING

import pytest

from boxd_client.cli.archive import CopyFailed, Unpacker, pack, total_size

if TYPE_CHECKING:
    from pathlib import Path

LONG = "n" * 200


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a directory with everything that a copy must carry."""
    root = tmp_path / "source"
    (root / "folder" / LONG).mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "folder" / LONG / "é").write_bytes(os.urandom(300_000))
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    (root / "none").touch()
    (root / "link").symlink_to("folder")
    return root


def unpacked(target: Path, data: bytes) -> list[str]:
    unpacker = Unpacker(target)
    unpacker.unpack(io.BytesIO(data))
    return unpacker.skipped


def tree(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else path.is_dir()
    return found


def archive(*members: tuple[str, bytes, str]) -> bytes:
    """Return an archive of members with a name, a type, and a link or a content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o4777
            content = text.encode() if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            member.linkname = "" if content else text
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_directory_arrives_as_it_is(source: Path, tmp_path: Path) -> None:
    data = b"".join(pack(source, "name", pytest.fail))
    assert unpacked(tmp_path / "copy", data) == []
    assert tree(tmp_path / "copy") == tree(source)
    assert (tmp_path / "copy/script").stat().st_mode & 0o777 == 0o755
    assert total_size(source) == 300_010
    with tarfile.open(fileobj=io.BytesIO(data)) as made:
        assert made.getnames()[0] == "name"


def test_a_file_arrives_under_its_new_name(source: Path, tmp_path: Path) -> None:
    data = b"".join(pack(source / "script", "script", pytest.fail))
    unpacked(tmp_path / "new", data)
    assert (tmp_path / "new").read_text() == "#!/bin/sh\n"


def test_a_special_file_is_skipped(source: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        skipped: list[str] = []
        data = b"".join(pack(source, "x", skipped.append))
    assert skipped == [str(source / "socket")]
    assert b"socket" not in data


@pytest.mark.parametrize(
    "members",
    [
        [("x/../../evil", tarfile.REGTYPE, "evil")],
        [("/evil", tarfile.REGTYPE, "evil")],
        [("../evil", tarfile.REGTYPE, "evil")],
        [("x/out", tarfile.SYMTYPE, "/etc"), ("x/out/evil", tarfile.REGTYPE, "evil")],
        [("x/out", tarfile.SYMTYPE, "../.."), ("x/out/evil", tarfile.REGTYPE, "evil")],
        [("x/evil", tarfile.LNKTYPE, "/etc/passwd")],
        [("x/evil", tarfile.LNKTYPE, "x/../../outside")],
        [("x/evil", tarfile.FIFOTYPE, "")],
        [("x/evil", tarfile.CHRTYPE, "")],
    ],
)
def test_nothing_leaves_the_target(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "outside").write_text("secret")
    skipped = unpacked(tmp_path / "in" / "copy", archive(("x", tarfile.DIRTYPE, ""), *members))
    assert skipped
    inside = tmp_path / "in" / "copy"
    outside = [path for path in tmp_path.rglob("evil") if not path.is_relative_to(inside)]
    assert not outside
    assert not (inside / "out").is_symlink()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "copy"
    target.mkdir()
    (target / "old").symlink_to(tmp_path / "outside")
    (target / "file").symlink_to(tmp_path / "outside" / "file")
    data = archive(
        ("x", tarfile.DIRTYPE, ""),
        ("x/old/file", tarfile.REGTYPE, "evil"),
        ("x/file", tarfile.REGTYPE, "good"),
        ("x/again", tarfile.LNKTYPE, "x/file"),
    )
    assert unpacked(target, data) == ["x/old/file"]
    assert list((tmp_path / "outside").iterdir()) == []
    assert (target / "again").read_text() == "good"
    assert (target / "file").stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_cut_archive_is_an_error(source: Path, tmp_path: Path, size: int) -> None:
    data = b"".join(pack(source / "folder" / LONG / "é", "x", pytest.fail))
    with pytest.raises(CopyFailed, match="damaged"):
        unpacked(tmp_path / "copy", data[:size])


def test_garbage_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CopyFailed):
        unpacked(tmp_path / "copy", b"garbage" * 1000)
