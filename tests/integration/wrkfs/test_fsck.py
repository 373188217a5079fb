"""`fsck`: each broken invariant is found, by its number, and nothing else is."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING

import asyncpg
import pytest

from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.snapshot import Snapshot
from wrkfs.types import ROOT_INO, Caller
from wrkfs.upkeep import fsck
from wrkfs.upkeep.repair import STEPS

if TYPE_CHECKING:
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

WHO = Caller(0, 0)

DAMAGE = {
    "entry without inode": (1, "UPDATE dentry SET ino = 999999 WHERE name = 'small'"),
    "entry below a file": (
        1,
        "UPDATE dentry SET parent = (SELECT ino FROM dentry WHERE name = 'small') "
        "WHERE name = 'large'",
    ),
    "links of a directory": (2, "UPDATE inode SET nlink = 7 WHERE ino = 1"),
    "detached, but not doomed": (
        2,
        "WITH d AS (DELETE FROM dentry WHERE name = 'empty' RETURNING ino) "
        "UPDATE inode SET nlink = 0, parent = 0 FROM d WHERE inode.ino = d.ino",
    ),
    "no root": (2, "DELETE FROM inode WHERE ino = 1"),
    "links of a file": (
        3,
        "UPDATE inode SET nlink = 3 WHERE ino = (SELECT ino FROM dentry WHERE name = 'small')",
    ),
    "no name, not held": (
        3,
        "WITH d AS (DELETE FROM dentry WHERE name = 'small' RETURNING ino) "
        "UPDATE inode SET nlink = 0 FROM d WHERE inode.ino = d.ino",
    ),
    "wrong parent": (
        4,
        "UPDATE inode SET parent = 1 WHERE ino = (SELECT ino FROM dentry WHERE name = 'inner')",
    ),
    "cycle of directories": (
        4,
        "UPDATE dentry SET parent = (SELECT ino FROM dentry WHERE name = 'inner') "
        "WHERE name = 'outer'",
    ),
    "shown beyond the end": (
        5,
        "UPDATE inode SET size = 10 WHERE ino = (SELECT ino FROM dentry WHERE name = 'large')",
    ),
    "shown in a directory": (5, "UPDATE slice SET inode = 1 WHERE NOT is_inline"),
    "end beyond 64 bits": (5, "UPDATE slice SET pos = 9223372036854775807 WHERE NOT is_inline"),
    "beyond its slice": (6, "UPDATE slice SET off = 9223372036854775807 WHERE NOT is_inline"),
    "sums missing": (6, "UPDATE slice SET checksums = '' WHERE NOT is_inline"),
    "wrong chunk": (6, "UPDATE slice SET chunk = 4 WHERE NOT is_inline"),
    "inline bytes missing": (7, "DELETE FROM inline"),
    "inline bytes too many": (7, "UPDATE inline SET data = data || 'x'"),
    "inline bytes for nobody": (7, "INSERT INTO inline VALUES (7, 'x')"),
    "shown, but to be deleted": (
        8,
        "INSERT INTO deleted (slice_id, size) SELECT slice_id, size FROM slice WHERE NOT is_inline",
    ),
    "target missing": (9, "DELETE FROM symlink"),
    "target of another length": (9, "UPDATE symlink SET target = 'abcdef'"),
    "target of a directory": (9, "INSERT INTO symlink VALUES (1, 'x')"),
    "use in bytes": (10, "UPDATE usage SET bytes = bytes + 1"),
    "use in inodes": (10, "UPDATE op_result SET inodes = inodes - 1 WHERE slot = 1"),
    "use beyond 64 bits": (10, "UPDATE op_result SET bytes = 9223372036854775807"),
    "no slots": (11, "DELETE FROM op_result"),
    "slots of a fenced session": (11, "UPDATE session SET fenced_at = now()"),
    "impossible mode": (
        12,
        "UPDATE inode SET mode = -1 WHERE ino = (SELECT ino FROM dentry WHERE name = 'fifo')",
    ),
    "holes of a file": (12, "UPDATE inode SET holes = 5 WHERE mode >> 12 = 8 AND size > 0"),
    "name with a slash": (12, "UPDATE dentry SET name = 'a/b' WHERE name = 'small'"),
    "counter behind": (12, "UPDATE counter SET next = 1 WHERE kind = 'id'"),
    "attribute of nobody": (13, "INSERT INTO xattr VALUES (99999, 'user.a', '')"),
    "trash of nothing": (
        13,
        "INSERT INTO trash (parent, name, ino, bytes, deleted_at) VALUES (1, 'x', 99999, 0, now())",
    ),
    "removed name of nobody": (
        13,
        "INSERT INTO removed_link (ino, parent, name, deleted_at) VALUES (99999, 1, 'x', now())",
    ),
    "removed name of a directory": (
        13,
        "INSERT INTO removed_link (ino, parent, name, deleted_at) VALUES (1, 1, 'x', now())",
    ),
    "trash of what has a name": (
        14,
        "INSERT INTO trash (parent, name, ino, bytes, deleted_at) VALUES (1, 'small', 1, 0, now())",
    ),
    "removed, not in the trash": (
        14,
        "UPDATE inode SET nlink = 0, parent = 1 "
        "WHERE ino = (SELECT ino FROM dentry WHERE name = 'small')",
    ),
    "bytes in the trash": (
        15,
        "WITH d AS (DELETE FROM dentry WHERE name = 'small' RETURNING ino), "
        "i AS (UPDATE inode SET nlink = 0, parent = 1 FROM d WHERE inode.ino = d.ino) "
        "INSERT INTO trash (parent, name, ino, bytes, deleted_at) "
        "SELECT 1, 'small', ino, 99, now() FROM d",
    ),
    "slice never given": (16, "UPDATE counter SET next = 1 WHERE kind = 'slice'"),
    "slices given twice": (16, "INSERT INTO slice_range VALUES (2, 1048576, 1)"),
    "snapshot without an entry": (
        17,
        "INSERT INTO snapshot (name, ino, path, created_at, inodes, bytes) "
        "VALUES ('lost', 4503599627370600, '/', now(), 1, 0)",
    ),
    "borrowed bytes": (
        18,
        "UPDATE inode SET borrowed = 1 WHERE ino = (SELECT ino FROM dentry WHERE name = 'small')",
    ),
    "bytes booked as shared": (18, "UPDATE usage SET shared = 7, bytes = bytes - 7"),
    "held, but gone": (13, "INSERT INTO sustained VALUES (99999, 1)"),
    "delegation of a missing directory": (
        19,
        "INSERT INTO delegation SELECT 99999, session_id FROM session LIMIT 1",
    ),
    "delegation of a file": (
        19,
        "INSERT INTO delegation SELECT d.ino, s.session_id FROM dentry d, session s "
        "WHERE d.name = 'small' LIMIT 1",
    ),
    "delegation of a removed directory": (
        19,
        "WITH d AS (DELETE FROM dentry WHERE name = 'empty' RETURNING ino), "
        "i AS (UPDATE inode SET nlink = 0, parent = 1 FROM d WHERE inode.ino = d.ino), "
        "t AS (INSERT INTO trash (parent, name, ino, bytes, deleted_at) "
        "SELECT 1, 'empty', ino, 0, now() FROM d) "
        "INSERT INTO delegation SELECT d.ino, s.session_id FROM d, session s LIMIT 1",
    ),
    "delegation of a missing session": (19, "INSERT INTO delegation VALUES (1, 99999)"),
    "reservation of a missing session": (20, "INSERT INTO reservation VALUES (99999, 1, 1)"),
    "reservation of a negative size": (
        20,
        "INSERT INTO reservation SELECT session_id, -1, 0 FROM session LIMIT 1",
    ),
}


BEYOND_REPAIR = {
    "entry below a file",
    "no root",
    "cycle of directories",
    "beyond its slice",
    "sums missing",
    "wrong chunk",
    "inline bytes missing",
    "inline bytes too many",
    "target missing",
    "impossible mode",
    "name with a slash",
    "slices given twice",
}
"""What `repair` leaves as it is: to mend it would be a guess."""
NOT_SHOWN = {"shown beyond the end", "shown in a directory", "end beyond 64 bits"}
"""Refs that no file can show; they may go."""


async def fill(fs: Filesystem) -> None:
    """One object of each kind: a small and a large file, directories, links, a fifo, an xattr."""
    await put(fs, b"small", b"x" * 100)
    await put(fs, b"large", b"y" * 200_000)
    outer = await fs.mkdir(ROOT_INO, b"outer", 0o755, WHO)
    await fs.mkdir(outer.ino, b"inner", 0o755, WHO)
    await fs.mkdir(ROOT_INO, b"empty", 0o755, WHO)
    await fs.symlink(ROOT_INO, b"link", b"small", WHO)
    fifo = await fs.mknod(ROOT_INO, b"fifo", 0o010644, 0, WHO)
    await fs.link(fifo.ino, outer.ino, b"fifo2")
    await fs.setxattr(outer.ino, b"user.a", b"value")


async def put(fs: Filesystem, name: bytes, data: bytes) -> None:
    """A file in the root."""
    _, handle = await fs.create(ROOT_INO, name, 0o644, os.O_WRONLY, WHO)
    await handle.write(0, data)
    await handle.close()


async def test_a_volume_at_work_is_clean(volume: VolumeConfig) -> None:
    assert await fsck.check(volume) == []
    fs = await Filesystem.connect(volume)
    try:
        await fill(fs)
        await fs.statfs()  # what is closed is let go of
        steps: list[tuple[int, int]] = []
        assert await fsck.check(volume, progress=lambda *step: steps.append(step)) == []
        assert len(steps) >= 13
        assert steps[-1][0] == steps[-1][1] == len(steps)
    finally:
        await fs.close()


async def test_each_damage_is_found(volume: VolumeConfig) -> None:
    """Each within a transaction that is undone, so that one volume serves for all."""
    fs = await Filesystem.connect(volume)
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await fill(fs)
        await fs.statfs()  # what is closed is let go of
        snapshot = Snapshot(connection)
        numbers = await snapshot.invariants()
        assert {number for number, _ in DAMAGE.values()} == set(numbers), "a check has no damage"
        for damage, (number, statement) in DAMAGE.items():
            undone = connection.transaction()
            await undone.start()
            changed = await connection.execute(statement)
            assert not changed.endswith(" 0"), f"{damage}: the test breaks nothing"
            found = [one for n in numbers for one in await snapshot.check(n, 5)]
            assert number in {one.invariant for one in found}, f"{damage}: {found}"
            await undone.rollback()
    finally:
        await connection.close()
        await fs.close()


async def test_what_is_safe_is_mended(volume: VolumeConfig) -> None:
    fs = await Filesystem.connect(volume)
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await fill(fs)
        await fs.statfs()  # what is closed is let go of
        snapshot = Snapshot(connection)
        numbers = await snapshot.invariants()
        shown = await connection.fetch("SELECT slice_id FROM slice ORDER BY slice_id")
        for damage, (_, statement) in DAMAGE.items():
            undone = connection.transaction()
            await undone.start()
            await connection.execute(statement)
            for step in STEPS:
                await connection.execute(f"SELECT wrkfs.repair_{step}()")
            left = [one for n in numbers for one in await snapshot.check(n, 5)]
            assert bool(left) == (damage in BEYOND_REPAIR), f"{damage}: {left}"
            if damage not in NOT_SHOWN:
                now = await connection.fetch("SELECT slice_id FROM slice ORDER BY slice_id")
                assert now == shown or "no name" in damage, f"{damage}: bytes given up"
            await undone.rollback()
    finally:
        await connection.close()
        await fs.close()


EXTREMES = (-(2**63), -1, 0, 1, 2, 2**31, 2**32, 2**63 - 1)
COLUMNS = {
    "inode": ("ino", "nlink", "uid", "gid", "size", "version", "parent", "rdev", "holes", "mode"),
    "dentry": ("parent", "ino", "cookie"),
    "slice": ("inode", "chunk", "ord", "pos", "slice_id", "size", "off", "length"),
    "op_result": ("bytes", "inodes", "epoch", "op_seq"),
    "usage": ("bytes", "inodes"),
    "counter": ("next",),
    "sustained": ("ino", "session_id"),
    "deleted": ("slice_id", "size"),
    "slice_range": ("first",),
    "delegation": ("ino", "session_id"),
    "reservation": ("session_id", "bytes", "inodes"),
}


def extreme(rng: random.Random, table: str, column: str, value: int) -> str:
    """Sets one column of a random row."""
    statement = """UPDATE TABLE SET COLUMN = VALUE WHERE ctid = (
        SELECT ctid FROM TABLE ORDER BY ctid LIMIT 1
        OFFSET (SELECT SHARE * count(*) FROM TABLE)::integer)"""
    for word, meaning in (
        ("TABLE", table),
        ("COLUMN", column),
        ("VALUE", str(value)),
        ("SHARE", str(rng.random())),
    ):
        statement = statement.replace(word, meaning)
    return statement


@pytest.mark.figure("FSCK-ROWS")
async def test_no_rows_break_the_checks(volume: VolumeConfig, figures: Figures) -> None:
    """Random columns of random rows take extreme values: the checks still answer."""
    fs = await Filesystem.connect(volume)
    connection = await asyncpg.connect(volume.meta_dsn)
    found = 0
    try:
        await fill(fs)
        await fs.statfs()  # what is closed is let go of
        snapshot = Snapshot(connection)
        numbers = await snapshot.invariants()
        for seed in figures(ci=100, long=20_000):
            rng = random.Random(seed)
            undone = connection.transaction()
            await undone.start()
            for _ in range(rng.randrange(1, 5)):
                table = rng.choice(sorted(COLUMNS))
                column, value = rng.choice(COLUMNS[table]), rng.choice(EXTREMES)
                with contextlib.suppress(asyncpg.PostgresError):  # two rows of one key, too large
                    async with connection.transaction():
                        await connection.execute(extreme(rng, table, column, value))
            left = [one for number in numbers for one in await snapshot.check(number, 3)]
            found += bool(left)
            await undone.rollback()
    finally:
        await connection.close()
        await fs.close()
    assert found, "nothing was ever broken"


@pytest.mark.unclean
async def test_the_number_of_findings_is_bounded(volume: VolumeConfig) -> None:
    fs = await Filesystem.connect(volume)
    try:
        for number in range(12):
            await put(fs, b"%d" % number, b"x")
    finally:
        await fs.close()
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await connection.execute("UPDATE inode SET nlink = 5 WHERE ino > 1")
    finally:
        await connection.close()
    found = await fsck.check(volume, limit=5)
    assert [one.invariant for one in found] == [3] * 5
    assert "nlink 5, but 1 names" in found[0].detail
