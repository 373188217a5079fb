"""A volume's role can write any row: each call then answers, or fails as a drive does.

Never an escape to another key or schema, never another error, never an endless call.
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import asyncpg
import pytest

from tests.harness.logs import provoked
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.paths import resolve
from wrkfs.types import ROOT_INO, Caller, Ino, SetAttr, SliceId
from wrkfs.upkeep import compact, fsck, gc, repair, scrub, trash
from wrkfs.upkeep.background import Pace, run_round

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig
    from wrkfs.types import BytesLike

P = ParamSpec("P")
T = TypeVar("T")
CALL_LIMIT = 30.0
"""Seconds that one call may take, whatever the rows say."""
PATIENCE_S = 10.0
"""Seconds in which a mount takes part again once its rows are good; *measured* 0.06."""
ENTRIES = 200
UPKEEP_EVERY = 3
"""Rounds of hostile rows after which upkeep and tools work on them, too: they take long."""
SCHEMA_COPY = "hostile_copy"
ROOT = Caller(0, 0)
NUMBERS = (0, -1, 1, 2, 3, 7, 1 << 26, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63))
MODES = (0, -1, 0o40755, 0o100644, 0o120777, 0o60600, 0o10644, 0o170000, (1 << 31) - 1)
BYTES = (
    *(
        b"",
        b"/",
        b".",
        b"..",
        b"\0",
        b"a/b",
        b"../../../../etc/passwd",
        b"/etc/shadow",
        b"\xff\xfe",
    ),
    *(b"x" * 256, b"/wrk/loop", b"x" * 70_000, b"d", b"f"),
)
VICTIM = "ctid = (SELECT ctid FROM {0} ORDER BY random() LIMIT 1)"
DELETE = "DELETE FROM {0} WHERE {1}"
INSERT = "INSERT INTO {0} ({1}) SELECT {2} FROM {0} ORDER BY random() LIMIT 1"
UPDATE = "UPDATE {0} SET {1} = $1::{2} WHERE {3}"
SIZES = """SELECT (SELECT count(*) FROM deleted)
    + (SELECT coalesce(sum(count), 0) FROM slice_range)"""
"""Ids that are garbage or may be."""
TIMES = ("infinity", "-infinity", "epoch", "now")
TEXTS = ("", "'; DROP TABLE inode; --", "x" * 32)


class WatchedBlocks(S3Blocks):
    """The object store, with every key written down."""

    keys: set[str]

    async def get(self, key: str, start: int, length: int) -> memoryview:
        """See BlockStore."""
        self.keys.add(key)
        return await super().get(key, start, length)

    async def put(self, key: str, data: BytesLike) -> None:
        """See BlockStore."""
        self.keys.add(key)
        await super().put(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        """See BlockStore."""
        self.keys |= set(keys)
        await super().delete(keys)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that the role may write."""

    table: str
    name: str
    kind: str


class Attacker:
    """Writes hostile rows as the volume's own role; puts the good ones back as administrator."""

    def __init__(self, role: asyncpg.Connection, admin: asyncpg.Connection, schema: str) -> None:
        self.role = role
        self._admin = admin
        self._schema = schema
        self._columns: list[Column] = []
        self._tables: list[str] = []

    async def prepare(self) -> None:
        """Reads what can be written and keeps a copy of every table."""
        rows = await self.role.fetch(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND has_column_privilege("
            "quote_ident(table_name), column_name, 'UPDATE') ORDER BY 1, 2"
        )
        self._columns = [Column(*row) for row in rows]
        await self._admin.execute(f"CREATE SCHEMA {SCHEMA_COPY}")
        found = await self._admin.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace "
            "AND relkind = 'r' ORDER BY 1",
            self._schema,
        )
        self._tables = [row[0] for row in found]
        for table in self._tables:
            await self._admin.execute(
                f"CREATE TABLE {SCHEMA_COPY}.{table} AS TABLE {self._schema}.{table}"
            )

    async def restore(self) -> None:
        """Puts the good rows back, again when the mount's own changes were in the way."""
        for _ in range(10):
            with suppress(asyncpg.DeadlockDetectedError):
                await self._restore()
                return
        pytest.fail("the database gave the mount the way ten times")

    async def _restore(self) -> None:
        async with self._admin.transaction():
            await self._admin.execute("SET LOCAL synchronous_commit = off")
            for table in self._tables:
                place = f"{self._schema}.{table}"
                await self._admin.execute(DELETE.format(place, "true"))
                await self._admin.execute(f"INSERT INTO {place} TABLE {SCHEMA_COPY}.{table}")

    async def attack(self, rng: random.Random) -> list[str]:
        """One to five hostile changes; what they were."""
        done: list[str] = []
        for _ in range(rng.randint(1, 5) * 8):
            column = rng.choice(self._columns)
            statement, value = self._statement(rng, column)
            try:
                await self.role.execute(statement, *value)
            except (asyncpg.PostgresError, asyncpg.DataError, OverflowError):
                # A constraint or a type refused it.
                continue
            done.append(f"{statement} {value!r:.60}")
            if len(done) >= 5:
                break
        return done

    def _statement(self, rng: random.Random, column: Column) -> tuple[str, tuple[object, ...]]:
        table, name = column.table, column.name
        victim = VICTIM.format(table)
        if rng.random() < 0.1:
            return DELETE.format(table, victim), ()
        value: object
        cast = column.kind
        if column.kind == "bytea":
            value = rng.choice(BYTES)
        elif column.kind == "integer":
            value = rng.choice(MODES)
        elif column.kind == "boolean":
            value = rng.random() < 0.5
        elif column.kind.startswith("timestamp"):
            value, cast = rng.choice(TIMES), "text::timestamptz"
        elif column.kind == "text":
            value = rng.choice(TEXTS)
        else:
            value = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            columns = [one.name for one in self._columns if one.table == table]
            copied = ", ".join(f"$1::{cast}" if one == name else one for one in columns)
            names = ", ".join(columns)
            return INSERT.format(table, names, copied), (value,)
        return UPDATE.format(table, name, cast, victim), (value,)


class Client:
    """Makes every kind of call on a volume."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self.seen: list[Ino] = []
        self.answered = 0
        self.refused = 0

    async def call(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> T | None:
        """One call: an answer, or an error of the drive."""
        try:
            async with asyncio.timeout(CALL_LIMIT):
                answer = await function(*args, **named)
        except WrkfsError:
            self.refused += 1
            return None
        self.answered += 1
        return answer

    async def everything(self) -> None:
        """Reads, then changes, then removes."""
        fs = self._fs
        await self.call(fs.statfs)
        inodes = {ROOT_INO}
        for path in (b"d/f", b"d/link", b"loop", b"d/sub/deep", b"big", b"none"):
            await self.call(resolve, fs, path)
        todo = [ROOT_INO]
        for _ in range(ENTRIES):
            if not todo:
                break
            folder = todo.pop()
            found = await self.call(fs.readdir, folder, 0, ENTRIES)
            for entry in found or ():
                if entry.attr.ino not in inodes:
                    inodes.add(entry.attr.ino)
                    todo.append(entry.attr.ino)
        self.seen = sorted(inodes)[:40]
        for ino in self.seen:
            await self._look(ino)
        await self._change()

    async def _look(self, ino: Ino) -> None:
        fs = self._fs
        await self.call(fs.getattr, ino)
        await self.call(fs.parent, ino)
        await self.call(fs.readlink, ino)
        await self.call(fs.listxattr, ino)
        await self.call(fs.getxattr, ino, b"user.x")
        await self.call(self._read, ino)

    async def _read(self, ino: Ino) -> None:
        handle = await self._fs.open(ino, os.O_RDONLY)
        try:
            for offset in (0, 4000, 1 << 20, max(0, handle.attr.size - 10)):
                await self.call(handle.read, offset, 1 << 16)
        finally:
            await handle.close()

    async def _change(self) -> None:
        fs = self._fs
        d = await self.call(fs.lookup, ROOT_INO, b"d")
        folder = d.ino if d is not None else ROOT_INO
        for name in (b"f", b"big", b"link", b"sub"):
            attr = await self.call(fs.lookup, folder, name)
            if attr is not None:
                ino = attr.ino
                await self.call(fs.setattr, ino, SetAttr(mode=0o600, size=100))
                await self.call(fs.setxattr, ino, b"user.y", b"1")
                await self.call(fs.link, ino, ROOT_INO, b"another")
                await self.call(self._append, ino)
        await self.call(fs.mkdir, folder, b"new", 0o755, ROOT)
        await self.call(fs.symlink, folder, b"s", b"target", ROOT)
        await self.call(fs.rename, ROOT_INO, b"d", folder, b"inside")
        await self.call(fs.rename, folder, b"f", ROOT_INO, b"moved")
        await self.call(fs.unlink, ROOT_INO, b"moved")
        await self.call(fs.rmdir, folder, b"new")
        await self.call(fs.remove_tree, ROOT_INO, b"d")
        await self.call(fs.sync)

    async def upkeep(self, config: VolumeConfig) -> None:
        """What mounts do in the background, then the tools."""
        fs = self._fs
        await self.call(run_round, fs, Pace(grace=timedelta(0)))
        for ino in self.seen:
            await self.call(compact.compact_file, fs, ino, refs=1)
        removed = await self.call(self._trash)
        for entry in removed or ():
            await self.call(trash.restore, fs, entry.entry.ino, to=b"back")
        await self.call(trash.restore, fs, b"d/f")
        await self.call(trash.empty, fs)
        await self.call(gc.collect, fs, grace=timedelta(0))
        await self.call(fsck.check, config)
        await self.call(scrub.scrub, config, progress=lambda _done, _all: None)
        await self.call(repair.repair, config)

    async def _trash(self) -> list[trash.RemovedEntry]:
        return [removed async for removed in trash.entries(self._fs)][:20]

    async def _append(self, ino: Ino) -> None:
        handle = await self._fs.open(ino, os.O_RDWR | os.O_APPEND)
        await handle.write(0, b"more")
        await handle.close()


async def furnish(fs: Filesystem) -> None:
    """A small tree of every kind of thing."""
    d = await fs.mkdir(ROOT_INO, b"d", 0o755, ROOT)
    sub = await fs.mkdir(d.ino, b"sub", 0o755, ROOT)
    await fs.mkdir(sub.ino, b"deep", 0o755, ROOT)
    for name, size in ((b"f", 5000), (b"big", 200_000)):
        _, handle = await fs.create(d.ino, name, 0o644, os.O_RDWR, ROOT)
        await handle.write(0, b"x" * size)
        await handle.close()
        await fs.setxattr(handle.ino, b"user.x", b"value")
    await fs.symlink(d.ino, b"link", b"f", ROOT)
    await fs.symlink(ROOT_INO, b"loop", b"loop", ROOT)
    await fs.mknod(d.ino, b"fifo", stat.S_IFIFO | 0o644, 0, ROOT)
    # Something in the trash, and garbage.
    gone = await fs.mkdir(ROOT_INO, b"gone", 0o755, ROOT)
    for name, size in ((b"small", 5000), (b"stored", 200_000), (b"cut", 200_000)):
        _, handle = await fs.create(gone.ino, name, 0o644, os.O_RDWR, ROOT)
        await handle.write(0, b"x" * size)
        await handle.close()
        if name == b"cut":
            await fs.setattr(handle.ino, SetAttr(size=0))
    await fs.remove_tree(ROOT_INO, b"gone")


@pytest.fixture
async def attacker(volume: VolumeConfig, drive_database: str) -> AsyncIterator[Attacker]:
    """The attacker on a furnished volume."""
    fs = await Filesystem.connect(volume)
    await furnish(fs)
    await fs.close()
    role = await asyncpg.connect(volume.meta_dsn)
    admin = await asyncpg.connect(drive_database)
    made = Attacker(role, admin, volume.schema)
    try:
        await made.prepare()
        yield made
    finally:
        await admin.execute(f"DROP SCHEMA IF EXISTS {SCHEMA_COPY} CASCADE")
        await role.close()
        await admin.close()


@pytest.fixture
async def fs(attacker: Attacker, volume: VolumeConfig) -> AsyncIterator[Filesystem]:
    """A session beside the attacker."""
    del attacker
    connected = await Filesystem.connect(volume)
    yield connected
    await connected.close()


@pytest.mark.promise("S1")
@pytest.mark.figure("FZ-rows")
@pytest.mark.unclean
@pytest.mark.timeout(300)
async def test_hostile_rows_end_in_errors_of_the_drive(
    attacker: Attacker, volume: VolumeConfig, figures: Figures
) -> None:
    answered = refused = 0
    keys: set[str] = set()
    with provoked("wrkfs"):
        for number in figures(ci=60, long=100_000):
            meta = PostgresMeta(volume, connections=1)
            await meta.start()
            blocks = WatchedBlocks(volume.store)
            blocks.keys = keys
            fs = Filesystem(meta, blocks, prefix=volume.store.prefix)
            what = await attacker.attack(random.Random(number))
            client = Client(fs)
            try:
                await client.everything()
                if number % UPKEEP_EVERY == 0:
                    await client.upkeep(volume)
            except BaseException as error:
                error.add_note("\n".join(what))
                raise
            finally:
                await client.call(fs.close)
                await attacker.restore()
            answered, refused = answered + client.answered, refused + client.refused
    assert answered > refused > 0
    assert all(key.startswith(f"{volume.store.prefix}/") and ".." not in key for key in keys)


@pytest.mark.promise("S1")
@pytest.mark.unclean
@pytest.mark.timeout(240)
async def test_a_flood_of_forged_garbage_is_worked_off_in_bounded_rounds(
    attacker: Attacker, fs: Filesystem
) -> None:
    role = attacker.role
    await role.execute(
        "INSERT INTO deleted (slice_id, size, deleted_at) "
        "SELECT n, 9223372036854775807, 'epoch' FROM generate_series(1000000000, 1000030000) n"
    )
    await role.execute(
        "INSERT INTO slice_range (first, count, session_id, ended_at) "
        "SELECT n << 40, 1048576, 0, 'epoch' FROM generate_series(1::bigint, 16) n"
    )
    before = await role.fetchval(SIZES)
    async with asyncio.timeout(CALL_LIMIT):
        done = await gc.collect(fs, grace=timedelta(0), batches=1)
    assert done.slices == gc.BATCH_SLICES
    assert before > await role.fetchval(SIZES)


@pytest.mark.promise("S1")
@pytest.mark.unclean
async def test_foreign_slice_ids_lead_to_own_keys_only(attacker: Attacker, fs: Filesystem) -> None:
    found = await resolve(fs, b"d/big")
    assert found.attr is not None
    query = "SELECT slice_id FROM slice WHERE inode = $1"
    own = await attacker.role.fetchval(query, found.attr.ino)
    for strange in {1, 2, 3, 999_999_999, (1 << 63) - 1} - {own}:
        await attacker.role.execute("UPDATE slice SET slice_id = $1", SliceId(strange))
        handle = await fs.open(found.attr.ino, os.O_RDONLY)
        with pytest.raises(WrkfsError):
            await handle.read(0, 100)
        await handle.close()


@pytest.mark.promise("S1")
@pytest.mark.figure("FZ-rows")
@pytest.mark.unclean
@pytest.mark.timeout(300)
async def test_a_mount_lives_on_hostile_rows(
    attacker: Attacker, mount: Callable[[], MountProcess], figures: Figures
) -> None:
    mounted = mount()

    def use() -> None:
        seen = 0
        for folder, folders, files in os.walk(mounted.path):
            seen += 1
            if seen > 50 or folder.count("/") > 40:
                return
            for name in (*folders, *files)[:50]:
                path = os.path.join(folder, name)
                for look in (os.lstat, os.listxattr, os.readlink, os.listdir, read_some):
                    try:
                        look(path)
                    except OSError:
                        continue

    for number in figures(ci=20, long=1000):
        await attacker.attack(random.Random(number))
        async with asyncio.timeout(120):
            await asyncio.to_thread(use)
        await attacker.restore()
        # The good rows have no session of this mount: it takes part anew, and works.
        async with asyncio.timeout(60):
            await asyncio.to_thread(write_again, mounted.path / "d" / f"ok{number}")


def read_some(path: str) -> None:
    """The beginning of a regular file."""
    if stat.S_ISREG(os.lstat(path).st_mode):
        with open(path, "rb") as file:
            file.read(1 << 16)


def write_again(path: os.PathLike[str]) -> None:
    """Writes a file, again and again until that works: a mount that is fenced says so first, and
    takes part anew. Raises OSError."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with open(path, "wb") as file:
                file.write(b"x")
            break
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)
    with open(path, "rb") as file:
        assert file.read() == b"x"
