"""Backups and restores of a control plane without a daemon: what is refused and what is left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backup import restoration, status
from boxd.backup.creation import BackupJob
from boxd.backup.encryption import FORMAT, MAGIC
from boxd.backup.keyfile import make_key, read_key
from boxd.backup.restoration import restore
from boxd.backup.schedule import BackupSchedule
from boxd.backup.target import DirectoryTarget, archive_name
from boxd.clock import SystemClock
from boxd.config import Config
from boxd.embedded.files import write_private
from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.process import processes_in
from boxd.errors import BadRequest, Conflict, NotFound, Unavailable
from boxd.model.box import BoxState
from boxd.store.export import importing
from tests.harness.control_store.contents import BOXES, INSTANCE, OWNER, fill, opened
from tests.harness.mounts.drive import until
from tests.harness.servers.pg import fresh_database
from tests.harness.service.daemon import BOXD
from tests.harness.wait import until as until_async

if TYPE_CHECKING:
    from tests.plugins.strict_logs import AssertLogs

pytestmark = pytest.mark.timeout(300)
FILES = {
    "instance": INSTANCE.encode(),
    "keys/master.key": b"M" * 32,
    "keys/ssh_host_ed25519": b"S",
    "images.toml": b"[own]\n",
    "flavors.toml": b"[tiny]\n",
    "tiers.toml": b"[default]\n",
}
CATALOGS = {"images.toml", "flavors.toml", "tiers.toml"}
CLOCK = SystemClock()


@dataclass
class Plane:
    """A control plane with something in every table, and where its backups go."""

    folder: Path
    dsn: str
    pg: str

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.folder / "state"

    @property
    def kept(self) -> Path:
        """The directory of archives."""
        return self.folder / "kept"

    @property
    def key(self) -> Path:
        """The key of its backups."""
        return self.folder / "key"

    def job(self, keep: int | None = None, every: timedelta | None = None) -> BackupJob:
        """Its backups."""
        target = DirectoryTarget(self.kept)
        return BackupJob(self.state, self.dsn, target, read_key(self.key), CLOCK, keep, every)

    async def restored(self, config: Config, source: Path | None = None, **more: bool) -> list[str]:
        """`boxd restore` with these flags."""
        config = replace(config, backup_key_file=self.key)
        keep = more.get("keep_database", False)
        place = str(source or self.kept)
        return await restore(
            config, place, self.key, CLOCK.now(), lambda _: None, keep_database=keep
        )

    def fresh(self, dsn: str | None = None) -> Config:
        """A state directory that is not there yet."""
        return Config(state_dir=self.folder / "new", meta_dsn=dsn)


@pytest.fixture
async def plane(pg: str, pg_database: str, tmp_path: Path) -> Plane:
    """One that was never backed up."""
    made = Plane(tmp_path, pg_database, pg)
    await fill(pg_database)
    (made.state / "keys").mkdir(parents=True)
    made.state.chmod(0o700)
    for name, content in FILES.items():
        write_private(made.state / name, content)
    made.kept.mkdir()
    make_key(made.key)
    return made


@pytest.fixture
async def archive(plane: Plane) -> Path:
    """Its first backup."""
    made = await plane.job().run()
    return plane.kept / made.name


def files(folder: Path) -> dict[str, bytes]:
    """Private files below a directory."""
    found = {}
    for name in FILES:
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        found[name] = (folder / name).read_bytes()
    return found


async def check_restored(config: Config, dsn: str) -> None:
    """Keys and rows are those of the plane; its boxes sleep without disk."""
    assert files(config.state_dir) == FILES
    assert config.state_dir.stat().st_mode & 0o777 == 0o700
    assert not (config.state_dir / restoration.STAGE).exists()
    async with opened(dsn) as store:
        assert await store.setting("instance") == INSTANCE
        boxes = await store.all_boxes()
        assert {one.name for one in boxes} == {"run", "slept", "broken"}
        assert {(one.state, one.detail) for one in boxes} == {
            (BoxState.SUSPENDED, restoration.DETAIL)
        }
        assert await store.workspaces(OWNER) == ["ws1"]
        assert [one.name for one in await store.profiles(OWNER)] == ["mine"]
        assert [one.name for one in await store.keys(OWNER)] == ["laptop"]
        assert await store.all_snapshots() == []
        assert await store.list_volumes() == []


async def test_restored_with_servers_of_its_own(plane: Plane, archive: Path) -> None:
    del archive
    config = plane.fresh()
    told = "\n".join(await plane.restored(config))
    for word in ("3 boxes", "--idle-reap 30d", "1 snapshots", "1 drives", str(config.state_dir)):
        assert word in told
    postgres = EmbeddedPostgres(config.state_dir / restoration.POSTGRES)
    assert processes_in(postgres.data, "postgres") == []
    dsn = await postgres.start()
    try:
        await check_restored(config, dsn)
    finally:
        await postgres.stop()
    with pytest.raises(Conflict, match="already has a service"):
        await plane.restored(config)
    assert files(config.state_dir) == FILES


async def test_a_catalog_that_is_there_stays(plane: Plane, archive: Path) -> None:
    del archive
    with fresh_database(plane.pg) as dsn:
        config = plane.fresh(dsn)
        config.state_dir.mkdir(mode=0o700)
        write_private(config.state_dir / "images.toml", b"[newer]\n")
        await plane.restored(config)
        assert files(config.state_dir) == FILES | {"images.toml": b"[newer]\n"}


async def test_restored_into_an_external_database(plane: Plane, archive: Path) -> None:
    with fresh_database(plane.pg) as dsn:
        config = plane.fresh(dsn)
        await plane.restored(config, archive)
        await check_restored(config, dsn)
        assert not (config.state_dir / restoration.POSTGRES).exists()
        other = replace(config, state_dir=plane.folder / "other")
        with pytest.raises(Conflict, match="--keep-database"):
            await plane.restored(other)
        assert not other.state_dir.exists()
        await check_restored(config, dsn)


async def test_only_the_keys_come_back_to_a_database_that_was_not_lost(
    plane: Plane, archive: Path
) -> None:
    del archive
    async with opened(plane.dsn) as store:
        await store.add_workspace(OWNER, "younger", CLOCK.now())
    config = plane.fresh(plane.dsn)
    await plane.restored(config, keep_database=True)
    assert files(config.state_dir) == FILES
    async with opened(plane.dsn) as store:
        assert await store.workspaces(OWNER) == ["ws1", "younger"]
        assert {one.detail for one in await store.all_boxes()} == {restoration.DETAIL}


async def test_another_database_is_not_taken_for_the_old_one(plane: Plane, archive: Path) -> None:
    del archive
    with fresh_database(plane.pg) as dsn:
        await fill(dsn)
        async with opened(dsn) as store:
            await store.put_setting("instance", "0" * 32)
        with pytest.raises(Conflict, match="not have the service of this backup"):
            await plane.restored(plane.fresh(dsn), keep_database=True)
        async with opened(dsn) as store:
            assert len(await store.all_boxes()) == len(BOXES)
    with pytest.raises(Conflict, match="--meta-dsn-file"):
        await plane.restored(plane.fresh(), keep_database=True)
    assert not plane.fresh().state_dir.exists()


def changed(archive: Path, how: str) -> None:
    """Does something to an archive."""
    data = bytearray(archive.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 1
    elif how == "cut":
        del data[-1:]
    elif how == "newer":
        data[len(MAGIC)] = FORMAT + 1
    elif how == "foreign":
        data[0] ^= 1
    archive.write_bytes(data)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("flipped", "changed"),
        ("cut", "cut off"),
        ("newer", "use a newer boxd"),
        ("foreign", "not a backup"),
    ],
)
async def test_a_damaged_archive_restores_nothing(
    plane: Plane, archive: Path, how: str, told: str
) -> None:
    changed(archive, how)
    with fresh_database(plane.pg) as dsn:
        for config in (plane.fresh(), plane.fresh(dsn)):
            with pytest.raises(Unavailable, match=told):
                await plane.restored(config)
            assert not config.state_dir.exists()
        async with importing(dsn) as target:
            await target.create_schema(1)


async def test_another_key_restores_nothing(plane: Plane, archive: Path) -> None:
    del archive
    plane.key.unlink()
    make_key(plane.key)
    with pytest.raises(Unavailable, match="not encrypted with the key"):
        await plane.restored(plane.fresh())
    assert not plane.fresh().state_dir.exists()


async def test_what_is_not_there_is_told(plane: Plane) -> None:
    with pytest.raises(NotFound, match="no backup in"):
        await plane.restored(plane.fresh())
    name = f"boxd-{INSTANCE[:8]}-20260102T030405000000Z.backup"
    with pytest.raises(NotFound, match=name):
        await plane.restored(plane.fresh(), plane.kept / name)
    with pytest.raises(Unavailable, match="no such directory"):
        await plane.restored(plane.fresh(), plane.folder / "none")
    plane.key.unlink()
    with pytest.raises(BadRequest, match="--new-key"):
        await plane.restored(plane.fresh())
    assert not plane.fresh().state_dir.exists()


async def test_what_was_in_the_state_directory_stays(plane: Plane, archive: Path) -> None:
    changed(archive, "flipped")
    config = plane.fresh()
    image = config.state_dir / "images" / "debian"
    image.mkdir(parents=True)
    config.state_dir.chmod(0o700)
    with pytest.raises(Unavailable):
        await plane.restored(config)
    assert {path.name for path in config.state_dir.iterdir()} == {"images", "lock"}
    changed(archive, "flipped")
    with fresh_database(plane.pg) as dsn:
        config = replace(config, meta_dsn=dsn)
        await plane.restored(config)
        await check_restored(config, dsn)
    assert image.exists()


@pytest.mark.parametrize("piece", ["keys", "instance"])
async def test_pieces_that_cannot_be_moved_take_the_rows_back(
    plane: Plane, archive: Path, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del archive
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == plane.fresh().state_dir / piece:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        return rename(self, target)

    with fresh_database(plane.pg) as dsn:
        config = plane.fresh(dsn)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", failing)
            with pytest.raises(Unavailable, match=f"new/{piece}: Permission denied"):
                await plane.restored(config)
        assert not config.state_dir.exists()
        await plane.restored(config)
        await check_restored(config, dsn)


def test_a_restore_that_was_killed_can_be_repeated(plane: Plane, archive: Path) -> None:
    del archive
    state = plane.fresh().state_dir
    command = [
        *(*BOXD, "restore", "--from", str(plane.kept), "--key-file", str(plane.key)),
        *("--state-dir", str(state)),
    ]
    stage = EmbeddedPostgres(state / restoration.STAGE / restoration.POSTGRES)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (stage.data / "postmaster.pid").exists())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (state / "instance").exists()
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "3 boxes" in done.stderr
    assert files(state) == FILES
    whole = {"instance", "keys", "lock", "postgres"} | CATALOGS
    assert {path.name for path in state.iterdir()} == whole
    assert processes_in(state / "postgres" / "data", "postgres") == []


async def test_nothing_stands_in_clear_in_an_archive(plane: Plane, archive: Path) -> None:
    data = archive.read_bytes()
    for secret in (
        b"M" * 16,
        b"TU1N",
        OWNER.encode()[:12],
        INSTANCE.encode(),
        b"ed25519",
        b"table",
    ):
        assert secret not in data.replace(MAGIC, b"")
    assert plane.key.read_bytes() not in data


async def test_old_archives_of_this_service_go(plane: Plane) -> None:
    made = [(await plane.job(keep=2).run()).name for _ in range(2)]
    other = plane.kept / f"boxd-{'0' * 8}-20200102T030405000000Z.backup"
    other.touch()
    made += [(await plane.job(keep=2).run()).name for _ in range(2)]
    assert {path.name for path in plane.kept.iterdir()} == {other.name, *made[-2:]}


async def test_a_clock_that_was_ahead_costs_no_new_archive(
    plane: Plane, assert_logs: AssertLogs
) -> None:
    ahead = [archive_name(INSTANCE, CLOCK.now() + timedelta(days=days)) for days in (365, 366)]
    for name in ahead:
        (plane.kept / name).touch()
    with assert_logs("2 backups are dated in the future"):
        made = [(await plane.job(keep=2).run()).name for _ in range(2)]
    assert {path.name for path in plane.kept.iterdir()} == {*ahead, made[1]}


async def test_outcomes_are_noted(plane: Plane) -> None:
    made = await plane.job().run()
    known = status.load(plane.state)[str(plane.kept)]
    assert (known.archive, known.failed) == (made.name, None)
    away = plane.kept.rename(plane.folder / "away")
    with pytest.raises(Unavailable, match="no such directory"):
        await plane.job().run()
    known = status.load(plane.state)[str(plane.kept)]
    assert known.failed is not None
    assert known.archive == made.name
    assert "no such directory" in known.why
    away.rename(plane.kept)
    await plane.job().run()
    assert status.load(plane.state)[str(plane.kept)].failed is None


async def test_what_cannot_be_removed_does_not_fail_a_backup(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    async def refuse(*_: object) -> list[str]:
        raise Unavailable("cannot list")

    monkeypatch.setattr(DirectoryTarget, "names", refuse)
    with assert_logs("old backups not removed: cannot list"):
        made = await plane.job(keep=1).run()
    assert (plane.kept / made.name).exists()


async def test_a_state_directory_without_service_has_no_backup(plane: Plane) -> None:
    (plane.state / "instance").unlink()
    with pytest.raises(Unavailable, match="no service yet"):
        await plane.job().run()
    assert list(plane.kept.iterdir()) == []
    assert {path.name for path in plane.state.iterdir()} == {"keys", status.FILE, *CATALOGS}


async def test_the_schedule_goes_on_through_failures(
    plane: Plane, assert_logs: AssertLogs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "boxd.backup.schedule")
    away = plane.kept.rename(plane.folder / "away")
    every = timedelta(milliseconds=10)
    schedule = BackupSchedule(plane.job(every=every), every)
    with assert_logs(f"backup to {plane.kept} failed: .*no such directory"):
        schedule.start()
        try:
            await until_async(lambda: "failed" in caplog.text)
            away.rename(plane.kept)
            await until_async(lambda: len(list(plane.kept.glob("boxd-*"))) >= 2)
        finally:
            await schedule.close()
    assert "backup made" in caplog.text
    assert not schedule._tasks
