"""A mount that is frozen beyond its session's life does no harm when it wakes."""

from __future__ import annotations

import asyncio
import errno
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from wrkfs.meta.postgres.sessions import PATIENCE, SILENCE
from wrkfs.meta.postgres.store import PostgresMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.mounts.drive import MountProcess
    from tests.harness.mounts.frozen import Frozen
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

TRIALS = 20
"""Freezings, of which one must come before a commit in the background."""


async def living(volume: VolumeConfig) -> set[int]:
    """Sessions of mounts that are not fenced."""
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        rows = await connection.fetch(
            "SELECT session_id FROM session WHERE kind = 'mount' AND fenced_at IS NULL"
        )
        return {row[0] for row in rows}
    finally:
        await connection.close()


async def declare_dead(volume: VolumeConfig, session: int) -> None:
    """What another session's heartbeat does to one that has been silent for ten minutes."""
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        await connection.execute(
            "UPDATE session SET heartbeat_at = heartbeat_at - $2::interval,"
            " expires_at = expires_at - $2::interval WHERE session_id = $1",
            session,
            timedelta(minutes=10),
        )
    finally:
        await connection.close()
    meta = PostgresMeta(volume, kind="reaper")
    await meta.start()
    try:
        await meta.reap(SILENCE, PATIENCE)
        assert session in await living(volume), "only suspected"
        await meta.reap(SILENCE, timedelta(0))
    finally:
        await meta.close()
    assert session not in await living(volume)


@pytest.mark.promise("D2")
@pytest.mark.figure("RA-6")
@pytest.mark.timeout(120)
def test_a_frozen_mount_is_refused_when_it_wakes(
    mount: Callable[[], MountProcess], volume: VolumeConfig, frozen: Frozen, figures: Figures
) -> None:
    second = mount()
    others = asyncio.run(living(volume))
    first = mount()
    for number in figures(ci=5, long=200):
        for trial in range(TRIALS):
            name, other = f"f{number}.{trial}", f"g{number}.{trial}"
            held = os.open(first.path / name, os.O_CREAT | os.O_RDWR)
            append = os.open(first.path / other, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.write(held, b"durable")
            os.fsync(held)
            os.fsync(append)
            # The mount accepts the bytes, but a frozen process cannot commit them.
            os.write(held, b" and late")
            os.write(append, b"late")
            frozen.stop(first)
            (session,) = asyncio.run(living(volume)) - others
            asyncio.run(declare_dead(volume, session))
            if is_like(second, {name: b"durable", other: b""}):
                break
            # The commit in the background came first, on a busy machine: once more.
            frozen.go_on(first)
            for descriptor in (held, append):
                assert _error(os.close, descriptor) in (0, errno.EIO)
        else:
            pytest.fail("the bytes are committed each time before the mount is frozen")
        (second.path / name).write_bytes(b"by the others")
        with (second.path / other).open("ab") as log:
            log.write(b"others")
        frozen.go_on(first)
        assert _error(os.fsync, held) == errno.EIO
        assert _error(os.close, append) == errno.EIO
        for path in (first.path, second.path):
            assert (path / name).read_bytes() == b"by the others"
            assert (path / other).read_bytes() == b"others"
        os.pwrite(held, b"BY", 0)
        assert _error(os.fsync, held) == 0, "the new session goes on"
        assert (second.path / name).read_bytes() == b"BY the others"
        os.close(held)
        (second.path / name).unlink()
        (first.path / other).unlink()


def is_like(mount: MountProcess, files: dict[str, bytes]) -> bool:
    """Whether a mount shows these bytes."""
    return all((mount.path / name).read_bytes() == data for name, data in files.items())


def _error(call: Callable[[int], None], descriptor: int) -> int:
    try:
        call(descriptor)
    except OSError as error:
        return error.errno or -1
    return 0
