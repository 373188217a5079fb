"""Races of write delegations with recalls, leases and deaths, which tests/model found."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.interface.delegations import Batch
    from wrkfs.types import Attr, Ino, SessionId

ALICE = Caller(1000, 1000)


async def test_a_recall_before_the_answer_of_mkdir_ends_the_delegation(
    meta: DelegatedMeta, store: PostgresMeta, other: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = store.mkdir

    async def late(parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        attr = await mkdir(parent, name, mode, caller)
        assert await other.readdir(attr.ino, 0, 10) == []
        return attr

    monkeypatch.setattr(store, "mkdir", late)
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    made, _ = await meta.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    assert (await other.lookup(home.ino, b"f")).ino == made.attr.ino


async def test_a_delegation_that_is_being_given_back_is_not_asked_for(
    meta: DelegatedMeta, store: PostgresMeta, other: PostgresMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, delegate = store.apply, store.delegate
    reached, free = asyncio.Event(), asyncio.Event()
    asked: list[Ino] = []

    async def slow(seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        if release:
            reached.set()
            await free.wait()
        await apply(seq, batch, release)

    async def asking(directory: Ino) -> bool:
        asked.append(directory)
        return await delegate(directory)

    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    monkeypatch.setattr(store, "apply", slow)
    monkeypatch.setattr(store, "delegate", asking)
    await meta.create(home.ino, b"a", 0o644, ALICE, exclusive=True)
    async with asyncio.timeout(20):
        reading = asyncio.create_task(other.lookup(home.ino, b"a"))
        await reached.wait()
        meta._grants._not_before.clear()  # the pause after a recall is over
        making = asyncio.create_task(meta.create(home.ino, b"b", 0o644, ALICE, exclusive=True))
        await store.getattr(ROOT_INO)
        if asked:
            await making  # it relies on the delegation that the batch is about to end
        free.set()
        await reading
        made, _ = await making
        assert (await other.lookup(home.ino, b"b")).ino == made.attr.ino


async def killed(meta: DelegatedMeta, store: PostgresMeta) -> None:
    """End a session as SIGKILL ends its process: its journal and its witness stay."""
    await meta._flusher.stop()
    meta._flusher.close_journal()
    await meta._leased.leases.close()
    await store._session._stop_heartbeat()
    witness = store._session._witness
    assert witness is not None
    os.close(witness._descriptor)
    assert store.listener is not None
    await store.listener.close()
    await store._links.close()


async def test_a_second_mount_leaves_a_journal_to_the_first(
    store: PostgresMeta,
    other: PostgresMeta,
    pg_volume: InPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mount(database: PostgresMeta) -> DelegatedMeta:
        return DelegatedMeta(database, pg_volume.config.schema, tmp_path / "journals")

    dead, second = PostgresMeta(pg_volume.config, leases=True, delegates=True), mount(store)
    victim = mount(dead)
    await victim.start()
    home = await victim.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    made, _ = await victim.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    await killed(victim, dead)
    database = PostgresMeta(pg_volume.config, leases=True, delegates=True)
    apply_for = database.apply_for

    async def beside(session: SessionId, epoch: int, seq: int, batch: Batch) -> None:
        await second.start()
        await apply_for(session, epoch, seq, batch)

    monkeypatch.setattr(database, "apply_for", beside)
    first = mount(database)
    try:
        await first.start()
        assert (await other.lookup(home.ino, b"f")).ino == made.attr.ino
        assert (
            await pg_volume.rows("SELECT 1 FROM session WHERE session_id = $1", dead.session) == []
        )
    finally:
        await first.close()
        await second.close()


async def test_an_answer_beside_a_grant_is_not_settled(
    meta: DelegatedMeta, store: PostgresMeta, other: PostgresMeta, pg_volume: InPostgres
) -> None:
    home = await other.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    made, _ = await other.create(home.ino, b"f", 0o644, ALICE, exclusive=True)
    await meta.readdir(home.ino, 0, 10)
    reader = PostgresMeta(pg_volume.config, leases=True)
    await reader.start()
    connection = await pg_volume.admin()
    try:
        async with connection.transaction():
            granted = await connection.fetchval(
                "SELECT wrkfs.delegate($1, $2, $3)", store.session, store.epoch, home.ino
            )
            assert granted
            # The lease is younger than the look of `delegate` for leases.
            assert await reader.take_lease(home.ino)
            assert not (await reader.stat(made.attr.ino))[1]
            assert not (await reader.find(home.ino, b"f"))[1]
    finally:
        await connection.close()
        await reader.close()


async def test_the_end_of_a_tenure_keeps_the_leases_of_delegated_directories(
    meta: DelegatedMeta, store: PostgresMeta, other: PostgresMeta, pg_volume: InPostgres
) -> None:
    home = await meta.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    away = await other.mkdir(ROOT_INO, b"away", 0o755, ALICE)
    await meta.readdir(away.ino, 0, 10)
    leases = "SELECT ino FROM lease WHERE session_id = $1 AND ino = ANY ($2)"
    both = [home.ino, away.ino]
    assert len(await pg_volume.rows(leases, store.session, both)) == 2
    await pg_volume.rows(
        "UPDATE session SET expires_at = clock_timestamp() - interval '1 s' WHERE session_id = $1"
        " RETURNING 1",
        store.session,
    )
    await other.mkdir(away.ino, b"x", 0o755, ALICE)
    left = await pg_volume.rows(leases, store.session, both)
    assert [row["ino"] for row in left] == [home.ino]
