"""Contract of `MetaStore`, rename and whole trees: runs on memory and on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from wrkfs import errors
from wrkfs.types import ROOT_INO, Caller, Ino, RenameFlags

if TYPE_CHECKING:
    from wrkfs.meta.interface.store import MetaStore

ME = Caller(1000, 1001)
NOWHERE = Ino(999_999)


async def make_file(meta: MetaStore, parent: Ino, name: bytes) -> Ino:
    """A closed, empty file."""
    return (await meta.mknod(parent, name, 0o644, 0, ME)).ino


async def names(meta: MetaStore, ino: Ino) -> list[bytes]:
    return sorted(entry.name for entry in await meta.readdir(ino, 0, 1000))


async def tree(meta: MetaStore) -> dict[str, Ino]:
    """/a/b/c (directories), /a/f, /g (files), /e (empty directory)."""
    a = (await meta.mkdir(ROOT_INO, b"a", 0o755, ME)).ino
    b = (await meta.mkdir(a, b"b", 0o755, ME)).ino
    c = (await meta.mkdir(b, b"c", 0o755, ME)).ino
    f = await make_file(meta, a, b"f")
    g = await make_file(meta, ROOT_INO, b"g")
    e = (await meta.mkdir(ROOT_INO, b"e", 0o755, ME)).ino
    return {"a": a, "b": b, "c": c, "f": f, "g": g, "e": e}


async def test_rename_moves_a_file(meta: MetaStore, other: MetaStore) -> None:
    ino = await tree(meta)
    before = await meta.getattr(ino["f"])
    await meta.rename(ino["a"], b"f", ino["c"], b"moved")
    after = await other.lookup(ino["c"], b"moved")
    assert after.ino == ino["f"]
    assert after.ctime_ns > before.ctime_ns
    assert after.mtime_ns == before.mtime_ns
    with pytest.raises(errors.NotFound):
        await other.lookup(ino["a"], b"f")


async def test_rename_moves_a_directory_and_its_links(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ino["a"], b"b", ino["e"], b"b2")
    assert (await meta.getattr(ino["a"])).nlink == 2
    assert (await meta.getattr(ino["e"])).nlink == 3
    assert await meta.parent(ino["b"]) == ino["e"]
    assert await meta.parent(ino["c"]) == ino["b"]


async def test_rename_replaces_a_file(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ino["a"], b"f", ROOT_INO, b"g")
    assert (await meta.lookup(ROOT_INO, b"g")).ino == ino["f"]
    with pytest.raises(errors.NotFound):
        await meta.getattr(ino["g"])
    assert (await meta.statfs()).inodes_used == 5


async def test_rename_replaces_an_empty_directory(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ino["a"], b"b", ROOT_INO, b"e")
    assert (await meta.lookup(ROOT_INO, b"e")).ino == ino["b"]
    assert (await meta.getattr(ROOT_INO)).nlink == 4
    assert await meta.parent(ino["b"]) == ROOT_INO
    with pytest.raises(errors.NotFound):
        await meta.getattr(ino["e"])


async def test_rename_refuses_what_cannot_be(meta: MetaStore) -> None:
    ino = await tree(meta)
    root = ROOT_INO
    cases: list[tuple[Ino, bytes, Ino, bytes, type[errors.WrkfsError]]] = [
        (root, b"e", root, b"a", errors.NotEmpty),
        (root, b"e", root, b"g", errors.NotDirectory),
        (root, b"g", root, b"e", errors.IsDirectory),
        (root, b"a", ino["a"], b"x", errors.InvalidArgument),
        (root, b"a", ino["c"], b"x", errors.InvalidArgument),
        (root, b"a", ino["b"], b"c", errors.InvalidArgument),
        (ino["b"], b"c", root, b"a", errors.NotEmpty),
        (root, b"none", root, b"x", errors.NotFound),
        (root, b"g", NOWHERE, b"x", errors.NotFound),
        (NOWHERE, b"g", root, b"x", errors.NotFound),
        (root, b"g", ino["f"], b"x", errors.NotDirectory),
        (ino["g"], b"g", root, b"x", errors.NotDirectory),
    ]
    before = [await meta.getattr(i) for i in (ROOT_INO, *ino.values())]
    for parent, name, new_parent, new_name, wanted in cases:
        with pytest.raises(wanted):
            await meta.rename(parent, name, new_parent, new_name)
    with pytest.raises(errors.Exists):
        await meta.rename(root, b"g", root, b"e", RenameFlags.NOREPLACE)
    with pytest.raises(errors.NotFound):
        await meta.rename(root, b"g", root, b"x", RenameFlags.EXCHANGE)
    with pytest.raises(errors.InvalidArgument):
        await meta.rename(root, b"a", ino["b"], b"c", RenameFlags.EXCHANGE)
    with pytest.raises(errors.InvalidArgument):
        await meta.rename(ino["b"], b"c", root, b"a", RenameFlags.EXCHANGE)
    with pytest.raises(errors.InvalidArgument):
        await meta.rename(root, b"g", root, b"e", RenameFlags.EXCHANGE | RenameFlags.NOREPLACE)
    assert [await meta.getattr(i) for i in (ROOT_INO, *ino.values())] == before


async def test_rename_without_replacing(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ROOT_INO, b"g", ino["e"], b"h", RenameFlags.NOREPLACE)
    assert (await meta.lookup(ino["e"], b"h")).ino == ino["g"]


async def test_rename_onto_itself_or_its_hard_link_does_nothing(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.link(ino["g"], ino["a"], b"g2")
    before = await meta.getattr(ino["g"])
    for flags in (RenameFlags.NONE, RenameFlags.EXCHANGE):
        await meta.rename(ROOT_INO, b"g", ino["a"], b"g2", flags)
        await meta.rename(ROOT_INO, b"a", ROOT_INO, b"a", flags)
    with pytest.raises(errors.Exists):
        await meta.rename(ROOT_INO, b"g", ino["a"], b"g2", RenameFlags.NOREPLACE)
    assert await meta.getattr(ino["g"]) == before
    assert await names(meta, ino["a"]) == [b"b", b"f", b"g2"]
    assert b"g" in await names(meta, ROOT_INO)


async def test_exchange_of_directory_and_file(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ino["a"], b"b", ROOT_INO, b"g", RenameFlags.EXCHANGE)
    assert (await meta.lookup(ROOT_INO, b"g")).ino == ino["b"]
    assert (await meta.lookup(ino["a"], b"b")).ino == ino["g"]
    assert await meta.parent(ino["b"]) == ROOT_INO
    assert (await meta.getattr(ino["a"])).nlink == 2
    assert (await meta.getattr(ROOT_INO)).nlink == 5


async def test_exchange_of_directories_across_parents(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ino["b"], b"c", ROOT_INO, b"e", RenameFlags.EXCHANGE)
    assert await meta.parent(ino["c"]) == ROOT_INO
    assert await meta.parent(ino["e"]) == ino["b"]
    assert (await meta.getattr(ino["b"])).nlink == 3
    assert (await meta.getattr(ROOT_INO)).nlink == 4


async def test_rename_within_a_directory_keeps_counts(meta: MetaStore) -> None:
    ino = await tree(meta)
    await meta.rename(ROOT_INO, b"e", ROOT_INO, b"e2")
    await meta.rename(ROOT_INO, b"e2", ROOT_INO, b"a", RenameFlags.EXCHANGE)
    assert (await meta.getattr(ROOT_INO)).nlink == 4
    assert (await meta.lookup(ROOT_INO, b"e2")).ino == ino["a"]
    assert await meta.parent(ino["a"]) == ROOT_INO


async def test_remove_tree(meta: MetaStore, other: MetaStore) -> None:
    ino = await tree(meta)
    outside = await meta.link(ino["f"], ROOT_INO, b"outside")
    await meta.link(ino["f"], ino["c"], b"inside")
    await meta.symlink(ino["a"], b"l", b"../e", ME)
    opened, _ = await other.create(ino["c"], b"open", 0o600, ME, exclusive=True)
    await meta.remove_tree(ROOT_INO, b"a")
    assert await names(other, ROOT_INO) == [b"e", b"g", b"outside"]
    assert (await other.getattr(outside.ino)).nlink == 1
    assert (await other.getattr(opened.attr.ino)).nlink == 0
    assert (await other.getattr(ROOT_INO)).nlink == 3
    for gone in (ino["a"], ino["b"], ino["c"]):
        with pytest.raises(errors.NotFound):
            await other.getattr(gone)
    assert (await other.statfs()).inodes_used == 4
    await let_go(other, opened.attr.ino)
    assert (await other.statfs()).inodes_used == 3
    await meta.remove_tree(ROOT_INO, b"outside")
    await meta.remove_tree(ROOT_INO, b"e")
    assert await names(other, ROOT_INO) == [b"g"]
