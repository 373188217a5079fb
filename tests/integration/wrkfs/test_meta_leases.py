"""What sessions tell the database of their leases, and what it takes from that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wrkfs.meta import sessions
from wrkfs.meta.postgres import PostgresMeta
from wrkfs.meta.statements import STATEMENTS
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from tests.harness.metastore import InPostgres
    from wrkfs.meta.links import Rows
    from wrkfs.types import Ino

ME = Caller(0, 0)


@pytest.fixture
async def holder(pg_volume: InPostgres) -> AsyncIterator[PostgresMeta]:
    """A session that may take leases."""
    meta = PostgresMeta(pg_volume.config, leases=True)
    await meta.start()
    try:
        yield meta
    finally:
        await meta.close()


async def leases(volume: InPostgres, session: int) -> set[Ino]:
    """Directories that a session has leased."""
    found = await volume.rows("SELECT ino FROM lease WHERE session_id = $1", session)
    return {row[0] for row in found}


async def run_of(volume: InPostgres) -> datetime:
    """The present run of the database."""
    found: datetime = (await volume.rows("SELECT taken_at FROM lease WHERE ino = 0"))[0][0]
    return found


async def test_a_session_is_registered_with_the_run_that_it_knows(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only from its first heartbeat on."""
    monkeypatch.setattr(sessions, "HEARTBEAT", 3600.0)
    meta = PostgresMeta(pg_volume.config, leases=True)
    try:
        for register in (meta.start, meta.rejoin):
            await register()
            query = f"SELECT run FROM session WHERE session_id = {meta.session}"
            assert (await pg_volume.rows(query))[0][0] == await run_of(pg_volume)
    finally:
        await meta.close()


@pytest.mark.promise("V1")
@pytest.mark.parametrize("run", ["NULL", "'2100-01-01'", "'1999-01-01'"])
async def test_after_a_crash_everybody_is_waited_for_who_may_not_know_of_it(
    pg_volume: InPostgres, run: str
) -> None:
    """Also who has said nothing yet, and whose run began when the server's clock was ahead."""
    meta = await pg_volume.session()
    await pg_volume.rows("SELECT wrkfs.register('mount', 1, 2, 'w', NULL, NULL)")
    survey = f"SELECT cached FROM wrkfs.survey({meta.session}, {meta.epoch}, NULL, '{{}}')"
    assert [row[0] for row in await pg_volume.rows(survey)] == [False]
    await pg_volume.rows(f"UPDATE session SET run = {run} WHERE channel IS NOT NULL")
    assert [row[0] for row in await pg_volume.rows(survey)] == [True]
    await pg_volume.rows("UPDATE session SET expires_at = started_at WHERE channel IS NOT NULL")
    assert [row[0] for row in await pg_volume.rows(survey)] == [False]


@pytest.mark.promise("V1")
async def test_a_late_copy_of_giving_back_ends_no_newer_lease(
    pg_volume: InPostgres, holder: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await holder.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    assert await leases(pg_volume, holder.session) == {made}
    sent: list[tuple[object, ...]] = []
    call = holder._links.call

    async def heard(name: str, args: tuple[object, ...], deadline: float | None = None) -> Rows:
        if name == "give_back":
            sent.append(args)
        return await call(name, args, deadline)

    monkeypatch.setattr(holder._links, "call", heard)
    for ino in (made, ROOT_INO, ROOT_INO):
        assert await holder.take_lease(ino)
        assert await leases(pg_volume, holder.session) == {ino}
        await holder.give_back([ino])
        assert await leases(pg_volume, holder.session) == set()
        assert await holder.take_lease(ino)
        # The network has kept a copy of each.
        for args in sent:
            await pg_volume.rows(STATEMENTS["give_back"], *args)
        assert await leases(pg_volume, holder.session) == {ino}
        await holder.give_back([ino])


@pytest.mark.promise("V1")
async def test_a_lease_that_is_taken_once_more_counts_from_then_on(
    pg_volume: InPostgres, holder: PostgresMeta
) -> None:
    """A row may be left of an earlier taking, whose answer was late; nobody has known of it."""
    assert await holder.take_lease(ROOT_INO)
    late = (holder.session, [ROOT_INO], holder._session.sequence)
    assert await holder.take_lease(ROOT_INO)
    await pg_volume.rows(STATEMENTS["give_back"], *late)
    assert await leases(pg_volume, holder.session) == {ROOT_INO}


async def test_other_sessions_keep_what_one_gives_back(
    pg_volume: InPostgres, holder: PostgresMeta
) -> None:
    other = PostgresMeta(pg_volume.config, leases=True)
    await other.start()
    try:
        assert await holder.take_lease(ROOT_INO)
        assert await other.take_lease(ROOT_INO)
        await other.give_back([ROOT_INO])
        assert await leases(pg_volume, holder.session) == {ROOT_INO}
        assert await leases(pg_volume, other.session) == set()
    finally:
        await other.close()
