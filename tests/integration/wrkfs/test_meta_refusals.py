"""A refused call is not remembered: sent again under its number, it is applied, and only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncpg

    from tests.harness.volumes.metastore import InPostgres

INO = 1_000_000
DONE, EXISTS, QUOTA, RECALLED = 0, 17, 122, -2
PAGE = b"p" * 100


class Caller:
    """Calls functions through slot 1 of a session that it registered."""

    def __init__(self, admin: asyncpg.Connection, session: int) -> None:
        self.admin, self.session = admin, session
        self.seq = 1

    async def call(self, function: str, *values: object) -> asyncpg.Record:
        """One call under the present number."""
        places = ", ".join(f"${n}" for n in range(1, len(values) + 5))
        query = f"SELECT * FROM wrkfs.{function}({places})"  # noqa: S608 fixed names only
        return await self.one(query, self.session, 1, 1, self.seq, *values)

    async def one(self, query: str, *values: object) -> asyncpg.Record:
        """The one row of a query."""
        (row,) = await self.admin.fetch(query, *values)
        return row

    async def slot(self) -> asyncpg.Record:
        """What is remembered."""
        query = "SELECT * FROM op_result WHERE session_id = $1 AND slot = 1"
        return await self.one(query, self.session)

    async def refused(self, errno: int, function: str, *values: object) -> None:
        """The call is refused, and leaves no trace."""
        before = await self.slot(), await self.rows()
        answer = await self.call(function, *values)
        assert answer["errno"] == errno
        assert (await self.slot(), await self.rows()) == before

    async def applied(self, function: str, *values: object) -> asyncpg.Record:
        """The call is done, and its copy answers the same and changes nothing."""
        answer = await self.call(function, *values)
        assert answer["errno"] == DONE
        after = await self.slot(), await self.rows()
        assert after[0]["op_seq"] == self.seq
        again = await self.call(function, *values)
        assert (again["errno"], again["ino"], again["flag"]) == (
            DONE,
            answer["ino"],
            answer["flag"],
        )
        assert (await self.slot(), await self.rows()) == after
        self.seq += 1
        return answer

    async def rows(self) -> list[list[asyncpg.Record]]:
        """Everything that calls here may change."""
        return [
            await self.admin.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")  # noqa: S608 fixed names
            for table in ("inode", "dentry", "slice", "inline", "sustained", "symlink")
        ]

    async def limit(self, size: int | None, inodes: int | None) -> None:
        """Sets the quota."""
        await self.admin.execute(
            "UPDATE volume SET bytes_limit = $1, inodes_limit = $2", size, inodes
        )

    async def used(self) -> tuple[int, int]:
        """Bytes and inodes."""
        use = await self.one("SELECT * FROM wrkfs.statfs()")
        return use["bytes_used"], use["inodes_used"]

    async def lease(self, *, held: bool) -> None:
        """Somebody else has the root leased, or gives it back."""
        await self.admin.execute(
            "INSERT INTO lease (ino, session_id, taken_at) SELECT 1, session_id, now() FROM session"
            " WHERE session_id <> $1"
            if held
            else "DELETE FROM lease WHERE session_id <> $1",
            self.session,
        )


REGISTER = "SELECT wrkfs.register('mount', 1, 2, NULL, NULL, NULL)"


@pytest.fixture
async def caller(pg_volume: InPostgres) -> AsyncIterator[Caller]:
    """Beside another session."""
    admin = await pg_volume.admin()
    try:
        session, _ = await admin.fetchval(REGISTER), await admin.fetchval(REGISTER)
        await admin.execute("UPDATE counter SET next = $1", INO + 100)
        await admin.execute("UPDATE session SET expires_at = now() + interval '1 h'")
        yield Caller(admin, session)
    finally:
        await admin.close()


def node(name: bytes, ino: int, mode: int) -> tuple[object, ...]:
    """The parameters that `create` and `make` have in common."""
    return ROOT_INO, name, ino, mode, 0, 0


def page(
    ino: int, slice_id: int, pos: int, data: bytes = PAGE, *, append: bool = False
) -> tuple[object, ...]:
    """A commit of one extent of inline bytes."""
    return ino, [pos], [slice_id], [len(data)], [b""], [data], append, False, None


def chmod(ino: int, size: int | None = None) -> tuple[object, ...]:
    """A change of the mode, and maybe of the size."""
    return ino, 0o600, None, None, size, None, None, False, False


@pytest.mark.promise("V1")
async def test_leases_of_others_leave_a_call_as_if_it_had_not_been(caller: Caller) -> None:
    await caller.applied("create", *node(b"f", INO, 0o100644), True, False)
    await caller.applied("commit", *page(INO, INO, 0))
    calls: tuple[tuple[Any, ...], ...] = (
        ("create", *node(b"g", INO + 1, 0o100644), True, False),
        ("make", *node(b"d", INO + 2, 0o40755), 0, None),
        ("make", *node(b"l", INO + 3, 0o120777), 0, b"target"),
        ("commit", *page(INO, INO + 1, 0)),
        ("commit", *page(INO, INO + 2, 0, append=True)),
        ("commit", *page(INO, INO + 3, 1 << 20)),
        ("commit", *page(INO, INO + 4, 200)),
        ("setattr", *chmod(INO)),
        ("setattr", *chmod(INO, 150)),
    )
    for function, *values in calls:
        await caller.lease(held=True)
        await caller.refused(RECALLED, function, *values)
        await caller.lease(held=False)
        await caller.applied(function, *values)
    assert await caller.used() == (150, 4)


async def test_a_quota_leaves_a_call_as_if_it_had_not_been(caller: Caller) -> None:
    await caller.applied("create", *node(b"f", INO, 0o100644), True, False)
    calls: tuple[tuple[Any, ...], ...] = (
        ("create", *node(b"g", INO + 1, 0o100644), True, False),
        ("make", *node(b"d", INO + 2, 0o40755), 0, None),
        ("commit", *page(INO, INO + 1, 50)),
        # Ends before the first byte, and covers some of them: 50 more.
        ("commit", *page(INO, INO + 2, 0)),
        # Nothing more: what is covered was there.
        ("commit", *page(INO, INO + 3, 50)),
        ("commit", *page(INO, INO + 4, 0, append=True)),
    )
    grown = ((0, 1), (0, 1), (100, 0), (50, 0), (0, 0), (100, 0))
    for (function, *values), (size, inodes) in zip(calls, grown, strict=True):
        used = await caller.used()
        # Beside the leases of others, of which the holder is told only when there is room.
        await caller.lease(held=True)
        if size + inodes > 0:
            await caller.limit(used[0] + max(size - 1, 0), used[1] + max(inodes - 1, 0))
            await caller.refused(QUOTA, function, *values)
        await caller.limit(used[0] + size, used[1] + inodes)
        await caller.refused(RECALLED, function, *values)
        await caller.lease(held=False)
        await caller.applied(function, *values)
        assert await caller.used() == (used[0] + size, used[1] + inodes)


async def test_a_name_that_is_there_leaves_a_call_as_if_it_had_not_been(caller: Caller) -> None:
    await caller.applied("create", *node(b"f", INO, 0o100644), True, False)
    await caller.refused(EXISTS, "create", *node(b"f", INO + 1, 0o100644), True, False)
    await caller.refused(EXISTS, "make", *node(b"f", INO + 1, 0o40755), 0, None)
    await caller.refused(20, "make", INO, b"x", INO + 1, 0o40755, 0, 0, 0, None)
    await caller.refused(2, "make", INO + 9, b"x", INO + 1, 0o40755, 0, 0, 0, None)
    answer = await caller.applied("create", *node(b"f", INO + 1, 0o100644), False, False)
    assert (answer["ino"], answer["flag"]) == (INO, False)
    assert await caller.used() == (0, 1)


async def test_odd_extents_are_refused_or_put_as_ever(caller: Caller) -> None:
    await caller.applied("create", *node(b"f", INO, 0o100644), True, False)
    await caller.refused(27, "commit", *page(INO, INO, (1 << 63) - 50))
    await caller.applied("commit", *page(INO, INO, (1 << 63) - 101))
    await caller.refused(27, "commit", *page(INO, INO + 1, 0, append=True))
    await caller.refused(21, "commit", *page(ROOT_INO, INO + 1, 0))
    await caller.refused(116, "commit", *page(INO + 9, INO + 1, 0))
    # Across the edge of a chunk: one slice, two refs.
    await caller.applied("commit", *page(INO, INO + 1, (1 << 26) - 50))
    assert len((await caller.rows())[2]) == 3
    assert await caller.used() == (200, 1)
