"""Paths from outside, and symbolic links inside the volume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wrkfs.drive import ME, Drive, create
from wrkfs.errors import InvalidArgument, NameTooLong, NotDirectory, NotFound, SymlinkLoop
from wrkfs.paths import MAX_SYMLINKS, resolve, split
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (b"", []),
        (b"/", []),
        (b"//a///b/", [b"a", b"b"]),
        (b"a\\b/\xff\x01", [b"a\\b", b"\xff\x01"]),
        (b"...", [b"..."]),
        (b"x" * 255, [b"x" * 255]),
    ],
)
def test_split(path: bytes, names: list[bytes]) -> None:
    assert split(path) == names


@pytest.mark.parametrize("path", [b"..", b"a/../b", b"./a", b"a/.", b"a\0b"])
def test_split_refuses(path: bytes) -> None:
    with pytest.raises(InvalidArgument):
        split(path)


@pytest.mark.parametrize("path", [b"x" * 256, b"a/" * 2049])
def test_split_refuses_length(path: bytes) -> None:
    with pytest.raises(NameTooLong):
        split(path)


@given(st.binary(max_size=300))
def test_split_gives_usable_names_or_refuses(path: bytes) -> None:
    try:
        names = split(path)
    except (InvalidArgument, NameTooLong):
        return
    for name in names:
        assert 0 < len(name) <= 255
        assert name not in (b".", b"..")
        assert b"/" not in name
        assert b"\0" not in name
    assert split(b"/".join(names)) == names


async def tree(drive: Drive) -> Filesystem:
    """d/, d/e/, d/e/f."""
    fs = await drive.mount()
    d = await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    e = await fs.mkdir(d.ino, b"e", 0o755, ME)
    _, handle = await fs.create(e.ino, b"f", 0o644, 2, ME)
    await handle.close()
    return fs


async def link(fs: Filesystem, name: bytes, target: bytes) -> None:
    await fs.symlink(ROOT_INO, name, target, ME)


async def test_resolve_names(drive: Drive) -> None:
    fs = await tree(drive)
    root = await resolve(fs, b"/")
    assert (root.parent, root.name) == (ROOT_INO, b"")
    found = await resolve(fs, b"/d/e/f")
    assert found.name == b"f"
    assert found.attr is not None
    assert found.attr.is_file
    absent = await resolve(fs, b"d/new")
    assert (absent.name, absent.attr) == (b"new", None)
    assert absent.parent == (await fs.lookup(ROOT_INO, b"d")).ino
    with pytest.raises(NotFound):
        await resolve(fs, b"none/x")
    with pytest.raises(NotDirectory):
        await resolve(fs, b"d/e/f/x")


@pytest.mark.parametrize(
    "target",
    [b"d/e/f", b"/wrk/d/e/f", b"./d//e/./f", b"d/e/../e/f", b"/wrk//d/e/f", b"d/../d/e/f"],
)
async def test_links_inside(drive: Drive, target: bytes) -> None:
    fs = await tree(drive)
    await link(fs, b"l", target)
    found = await resolve(fs, b"l")
    assert found.attr == (await resolve(fs, b"d/e/f")).attr
    assert found.name == b"f"
    unfollowed = await resolve(fs, b"l", follow=False)
    assert unfollowed.attr is not None
    assert unfollowed.attr.is_symlink


async def test_links_on_the_way_are_always_followed(drive: Drive) -> None:
    fs = await tree(drive)
    await link(fs, b"l", b"d")
    found = await resolve(fs, b"l/e/f", follow=False)
    assert found.attr is not None
    assert (await resolve(fs, b"l/new")).parent == (await fs.lookup(ROOT_INO, b"d")).ino


@pytest.mark.parametrize(
    "target", [b"/etc/passwd", b"/wrkx", b"/", b"../x", b"d/../../x", b"/wrk/../etc", b"none/x"]
)
async def test_links_that_lead_out_are_not_found(drive: Drive, target: bytes) -> None:
    fs = await tree(drive)
    await link(fs, b"l", target)
    with pytest.raises(NotFound):
        await resolve(fs, b"l")


async def test_a_dangling_link_names_the_place_where_its_target_would_be(drive: Drive) -> None:
    fs = await tree(drive)
    await link(fs, b"l", b"d/new")
    found = await resolve(fs, b"l")
    assert (found.name, found.attr) == (b"new", None)


async def test_loops_end(drive: Drive) -> None:
    fs = await tree(drive)
    await link(fs, b"a", b"b")
    await link(fs, b"b", b"a")
    with pytest.raises(SymlinkLoop):
        await resolve(fs, b"a")


async def test_as_many_links_as_linux_allows(drive: Drive) -> None:
    fs = await tree(drive)
    await link(fs, b"0", b"d")
    for number in range(1, MAX_SYMLINKS + 1):
        await link(fs, b"%d" % number, b"%d" % (number - 1))
    assert (await resolve(fs, b"%d" % (MAX_SYMLINKS - 1))).name == b"d"
    with pytest.raises(SymlinkLoop):
        await resolve(fs, b"%d" % MAX_SYMLINKS)


async def test_a_link_to_a_parent(drive: Drive) -> None:
    fs = await tree(drive)
    d = await fs.lookup(ROOT_INO, b"d")
    e = await fs.lookup(d.ino, b"e")
    await fs.symlink(e.ino, b"up", b"..", ME)
    found = await resolve(fs, b"d/e/up")
    assert found.attr is not None
    assert found.attr.ino == d.ino
    assert (await resolve(fs, b"d/e/up/e/f")).name == b"f"


async def test_names_of_created_files(drive: Drive) -> None:
    fs = await drive.mount()
    await create(fs, b"\xff\n ")
    assert (await resolve(fs, b"/\xff\n ")).attr is not None
