"""Mount processes under the daemon: adopted, restarted, ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.embedded.process import start_ticks
from boxd.errors import Unavailable
from boxd.workspaces import health
from boxd.workspaces.journals import read_journals
from boxd.workspaces.mount_process import MountOptions
from boxd.workspaces.mounts import Mounts
from tests.harness.mounts.drive import fresh_volume
from tests.harness.wait import until
from tests.harness.workspaces.users import service_users
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.data.diskcache import cache_directory
from wrkfs.meta.delegations.delta import cut_record
from wrkfs.meta.delegations.journal import Journal, Owner
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.servers.objectserver import ObjectServer
    from tests.plugins.strict_logs import AssertLogs


class Restarts:
    """What `on_restart` was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Path]] = []

    async def __call__(self, volume: str, path: Path) -> None:
        self.seen.append((volume, path))


@pytest.fixture
def restarts() -> Restarts:
    """A collector for `on_restart`."""
    return Restarts()


def open_mounts(tmp_path: Path, restarts: Restarts) -> Mounts:
    """Return the mounts of a daemon with this state directory."""
    return Mounts(tmp_path, MountOptions(service_users(tmp_path)), on_restart=restarts)


@pytest.fixture
async def mounts(tmp_path: Path, restarts: Restarts) -> AsyncIterator[Mounts]:
    """Mounts below `tmp_path`, ended afterwards whoever holds them then."""
    made = open_mounts(tmp_path, restarts)
    try:
        yield made
    finally:
        await made.close(stop=True)
        last = open_mounts(tmp_path, restarts)
        await last.adopt()
        await last.close(stop=True)


def pid_of(tmp_path: Path, volume: VolumeConfig) -> int:
    """The mount process of a volume."""
    return int(json.loads((tmp_path / volume.volume / "pid").read_text())["pid"])


def is_mounted(path: Path) -> bool:
    """Whether it stands in the mount table."""
    with open("/proc/self/mounts", encoding="utf-8") as table:
        return any(line.split()[1] == str(path) for line in table)


async def write(path: Path, data: bytes) -> None:
    await asyncio.to_thread(path.write_bytes, data)


async def read(path: Path) -> bytes:
    return await asyncio.to_thread(path.read_bytes)


async def test_a_mount_tells_how_it_does(
    mounts: Mounts, volume: VolumeConfig, tmp_path: Path
) -> None:
    assert await mounts.health(volume.volume) == {}
    path = await mounts.ensure(volume)
    await write(path / "file", b"x" * 1000)
    told = await mounts.health(volume.volume)
    assert (told["health"], told["bytes_used"], told["inodes_used"]) == ("ok", 1000, 1)
    assert told["pending_bytes"] == 0
    socket = tmp_path / volume.volume / "process" / "status"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    pid = pid_of(tmp_path, volume)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert await health.ask(socket, 0.2) == {"health": health.SILENT}
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (await mounts.health(volume.volume))["health"] == "ok"
    await mounts.release(volume.volume)
    assert await mounts.health(volume.volume) == {}
    assert not socket.exists()
    assert await health.ask(socket) == {"health": health.SILENT}


async def test_one_process_serves_all_who_ask(
    mounts: Mounts, volume: VolumeConfig, tmp_path: Path
) -> None:
    paths = await asyncio.gather(*(mounts.ensure(volume) for _ in range(3)))
    assert set(paths) == {tmp_path / volume.volume / "mnt"}
    await write(paths[0] / "f", b"x")
    pid = pid_of(tmp_path, volume)
    assert await mounts.ensure(volume) == paths[0]
    assert pid_of(tmp_path, volume) == pid
    assert os.getsid(pid) == pid, "its own session: a signal to the daemon's group spares it"
    assert oct((tmp_path / volume.volume / "pid").stat().st_mode & 0o777) == "0o600"


async def test_release_commits_unmounts_and_ends(
    mounts: Mounts, volume: VolumeConfig, tmp_path: Path
) -> None:
    path = await mounts.ensure(volume)
    await write(path / "f", b"x")
    pid = pid_of(tmp_path, volume)
    await mounts.release(volume.volume)
    assert start_ticks(pid) is None
    assert not is_mounted(path)
    assert not (tmp_path / volume.volume / "pid").exists()
    await mounts.release(volume.volume)
    assert await read(await mounts.ensure(volume) / "f") == b"x"


async def test_a_crashed_mount_stands_again_and_is_told(
    mounts: Mounts,
    restarts: Restarts,
    volume: VolumeConfig,
    tmp_path: Path,
    assert_logs: AssertLogs,
) -> None:
    path = await mounts.ensure(volume)
    await write(path / "f", b"x")
    first = pid_of(tmp_path, volume)
    with assert_logs("ended .*starting it again"):
        os.kill(first, signal.SIGKILL)
        await until(lambda: restarts.seen)
    assert restarts.seen == [(volume.volume, path)]
    assert await mounts.ensure(volume) == path
    assert await read(path / "f") == b"x"
    assert pid_of(tmp_path, volume) != first


async def test_the_next_daemon_adopts_a_living_mount(
    mounts: Mounts,
    restarts: Restarts,
    volume: VolumeConfig,
    tmp_path: Path,
    assert_logs: AssertLogs,
) -> None:
    path = await mounts.ensure(volume)
    pid = pid_of(tmp_path, volume)
    await mounts.close(stop=False)
    await write(path / "f", b"still there")
    successor = open_mounts(tmp_path, restarts)
    await successor.adopt()
    assert await successor.ensure(volume) == path
    assert pid_of(tmp_path, volume) == pid
    with assert_logs("ended .*starting it again"):
        os.kill(pid, signal.SIGKILL)
        await until(lambda: restarts.seen)
    assert await read(path / "f") == b"still there"
    await successor.close(stop=True)
    assert not is_mounted(path)


async def test_the_next_daemon_clears_what_died_meanwhile(
    mounts: Mounts, restarts: Restarts, volume: VolumeConfig, tmp_path: Path
) -> None:
    path = await mounts.ensure(volume)
    pid = pid_of(tmp_path, volume)
    await mounts.close(stop=False)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: start_ticks(pid) is None)
    successor = open_mounts(tmp_path, restarts)
    await successor.adopt()
    assert not is_mounted(path)
    await write(await successor.ensure(volume) / "f", b"x")
    await successor.close(stop=True)


async def test_another_process_with_the_old_number_is_not_adopted(
    mounts: Mounts, restarts: Restarts, volume: VolumeConfig, tmp_path: Path
) -> None:
    path = await mounts.ensure(volume)
    real = pid_of(tmp_path, volume)
    await mounts.close(stop=False)
    record = tmp_path / volume.volume / "pid"
    saved = record.read_text()
    record.write_text(json.dumps({"pid": os.getpid(), "start": 1}))
    successor = open_mounts(tmp_path, restarts)
    await successor.adopt()
    assert not is_mounted(path), "a mount of an unknown process is cleared away"
    record.write_text(saved)
    os.kill(real, signal.SIGKILL)
    await until(lambda: start_ticks(real) is None)


async def test_a_mount_that_cannot_start_says_so_and_leaves_nothing(
    mounts: Mounts, volume: VolumeConfig, tmp_path: Path
) -> None:
    (tmp_path / volume.volume).mkdir()
    (tmp_path / volume.volume / "mnt").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot prepare the mount of the drive"):
        await mounts.ensure(volume)
    assert not is_mounted(tmp_path / volume.volume / "mnt")


async def test_volume_ids_are_not_paths(mounts: Mounts) -> None:
    config = VolumeConfig("v", "s", "dsn", StoreConfig("e", "b", "p", "r", "a", "s"))
    for bad in ("../x", "", "."):
        with pytest.raises(ValueError, match="file name"):
            await mounts.ensure(replace(config, volume=bad))


async def test_each_mount_process_has_an_own_user_and_no_rights(
    mounts: Mounts,
    volume: VolumeConfig,
    tmp_path: Path,
    drive_database: str,
    objectserver: ObjectServer,
) -> None:
    users = set()
    with fresh_volume(drive_database, objectserver) as other:
        for config in (volume, other):
            path = await mounts.ensure(config)
            await write(path / "f", b"x")
            text = await read(Path(f"/proc/{pid_of(tmp_path, config)}/status"))
            lines = text.decode().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            users.add(int(status["Uid"].split()[0]))
            assert (tmp_path / config.volume / "process").stat().st_uid in users
        await mounts.release(other.volume)
    assert len(users) == 2
    assert 0 not in users


async def test_what_a_mount_without_a_sandbox_left_is_taken_over(
    restarts: Restarts, volume: VolumeConfig, tmp_path: Path
) -> None:
    old = Journal(tmp_path / "journals", Owner(volume.schema, SessionId(3), 1))
    old.append([cut_record(Ino(7), b"name")])
    old.close(keep=True)
    foreign = Journal(tmp_path / "journals", Owner("v_other", SessionId(3), 1))
    foreign.append([cut_record(Ino(7), b"name")])
    foreign.close(keep=True)
    cache = cache_directory(tmp_path / "cache", volume)
    (cache / "aa").mkdir(parents=True)
    options = MountOptions(service_users(tmp_path), tmp_path / "cache", 1 << 30, tmp_path)
    mounts = Mounts(tmp_path / "mounts", options, on_restart=restarts)
    try:
        await write(await mounts.ensure(volume) / "f", b"x")
    finally:
        await mounts.close(stop=True)
    # A session with this number never existed, so the journal is kept as lost.
    journals = tmp_path / "mounts" / volume.volume / "process" / "journal"
    assert [journal.state for journal in read_journals([journals])] == ["lost"]
    assert [path.name for path in (tmp_path / "journals").iterdir()] == ["v_other-3"]
    assert not cache.exists()
    assert (tmp_path / "cache" / volume.volume / cache.name).stat().st_uid != 0
