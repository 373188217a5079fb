"""Objects and cached blocks that are damaged: an error or the right bytes, never wrong ones."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from boxd.workspaces.mount_process import MountOptions
from boxd.workspaces.mounts import Mounts
from tests.harness.loop import run
from tests.harness.mounts.drive import MountProcess, until
from tests.harness.workspaces.users import service_users
from wrkfs.config import Limits
from wrkfs.errors import StorageError
from wrkfs.fs import Filesystem
from wrkfs.layout import BLOCK_SIZE, CHECKSUM_UNIT
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

SIZE = 2 * BLOCK_SIZE + 3 * CHECKSUM_UNIT + 77
PIECE = 1 << 20
NAMES = ("one", "two", "three")
ROUNDS = 10
"""Readings after which all is cached: a disk that is slower than the store gets what it can take,
but something each time."""
WRITTEN_OUT = 5.0
"""Seconds until what was read stands in the cache, or is not going to."""
CONTENTS = {name: random.Random(name).randbytes(SIZE) for name in NAMES}


def objects_of(volume: VolumeConfig, server: ObjectServer) -> list[Path]:
    """The files in which the object server keeps a volume's blocks."""
    prefix = server.directory / "server" / "data" / volume.store.prefix
    return sorted(path for path in prefix.rglob("*") if path.is_file())


def fill(directory: Path) -> None:
    """Writes all files below a mount."""
    for name, data in CONTENTS.items():
        (directory / name).write_bytes(data)


def flip(paths: list[Path], chance: random.Random) -> list[Path]:
    """Changes a bit of one object; the objects that are damaged now."""
    path = chance.choice(paths)
    # The object server's own end of a file is behind the block's bytes.
    at = chance.randrange(min(path.stat().st_size - 200, BLOCK_SIZE))
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return [path]


def lose(paths: list[Path], chance: random.Random) -> list[Path]:
    """Deletes one object."""
    path = chance.choice(paths)
    path.unlink()
    return [path]


def swap(paths: list[Path], chance: random.Random) -> list[Path]:
    """Exchanges two objects."""
    one, other = chance.sample(paths, 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return [one, other]


def cut(paths: list[Path], chance: random.Random) -> list[Path]:
    """Leaves the beginning of one object."""
    path = chance.choice(paths)
    os.truncate(path, chance.randrange(path.stat().st_size - 200))
    return [path]


def zero(paths: list[Path], chance: random.Random) -> list[Path]:
    """Some bytes of one object become zeros, as after a lost write of the disk."""
    path = chance.choice(paths)
    at = chance.randrange(path.stat().st_size - 4500)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(4096))
    return [path]


DAMAGES: tuple[Callable[[list[Path], random.Random], list[Path]], ...] = (
    flip,
    lose,
    swap,
    cut,
    zero,
)


@contextmanager
def damaged(
    volume: VolumeConfig,
    server: ObjectServer,
    damage: Callable[[list[Path], random.Random], list[Path]],
    chance: random.Random,
) -> Iterator[int]:
    """How many objects are damaged while it lasts; what it was comes back afterwards."""
    paths = objects_of(volume, server)
    before = {path: path.read_bytes() for path in paths}
    try:
        yield len(damage(paths, chance))
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def read_pieces(path: Path, expected: bytes) -> int:
    """Reads a file past the page cache; how many pieces gave EIO, none wrong bytes."""
    failed = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for start in range(0, len(expected), PIECE):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                data = os.pread(file.fileno(), PIECE, start)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                failed += 1
            else:
                assert data == expected[start : start + PIECE]
    return failed


@pytest.mark.figure("PX-4")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_object_is_eio_on_a_mount(
    volume: VolumeConfig,
    objectserver: ObjectServer,
    mount: Callable[[], MountProcess],
    damage: Callable[[list[Path], random.Random], list[Path]],
    figures: Figures,
) -> None:
    mounted = mount()
    fill(mounted.path)
    for round_ in figures(ci=1, long=100):
        mounted.stop()
        mounted.start()
        with damaged(volume, objectserver, damage, random.Random(round_)) as count:
            failed = {name: read_pieces(mounted.path / name, CONTENTS[name]) for name in NAMES}
            assert 1 <= sum(map(bool, failed.values())) <= count
            for name in NAMES:
                if failed[name]:
                    with pytest.raises(OSError, match="Input/output error"):
                        (mounted.path / name).read_bytes()
                else:
                    assert (mounted.path / name).read_bytes() == CONTENTS[name]
        for name in NAMES:
            assert (mounted.path / name).read_bytes() == CONTENTS[name], "an error is not kept"


async def read_all(volume: VolumeConfig, limits: Limits) -> dict[str, bool]:
    """Which files can be read by a fresh session; asserts that they are as they were written."""
    fs = await Filesystem.connect(volume, limits=limits)
    good = {}
    try:
        for name, expected in CONTENTS.items():
            ino = (await fs.lookup(ROOT_INO, name.encode())).ino
            handle = await fs.open(ino, os.O_RDONLY)
            try:
                for start in range(0, SIZE, 1 << 20):
                    data = await handle.read(start, 1 << 20)
                    assert data == expected[start : start + (1 << 20)]
                good[name] = True
            except StorageError:
                good[name] = False
            finally:
                await handle.close()
    finally:
        await fs.close()
    return good


@pytest.mark.figure("PX-4")
@pytest.mark.usefixtures("cache_disk")
@pytest.mark.parametrize("cached", [False, True])
def test_random_damage_of_objects_and_of_cached_blocks(
    volume: VolumeConfig,
    objectserver: ObjectServer,
    mount: Callable[[], MountProcess],
    tmp_path: Path,
    cached: bool,
    figures: Figures,
) -> None:
    mounted = mount()
    fill(mounted.path)
    mounted.stop()
    limits = Limits(disk=1 << 30, cache_dir=tmp_path / "cache" if cached else None)
    for seed in figures(ci=10, long=2000):
        chance = random.Random(seed)
        pieces = sorted((tmp_path / "cache").glob("*/??/*"))
        for _ in range(chance.randrange(4) if len(pieces) > 1 else 0):
            known = [path for path in pieces if path.exists() and path.stat().st_size > 5000]
            if len(known) > 1:
                chance.choice(DAMAGES)(known, chance)
        with damaged(volume, objectserver, chance.choice(DAMAGES), chance) as count:
            good = run(read_all(volume, limits))
            assert sum(not ok for ok in good.values()) <= count
            assert cached or not all(good.values())
        assert all(run(read_all(volume, limits)).values())


def cached_bytes(directory: Path) -> int:
    """Size of all pieces below a cache directory, which come and go."""
    found = 0
    for path in directory.glob("*/??/*"):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def is_cached(directory: Path) -> bool:
    """Whether all files are below a cache directory, as soon as they are written out."""
    with suppress(TimeoutError):
        until(lambda: cached_bytes(directory) >= len(NAMES) * SIZE, WRITTEN_OUT)
        return True
    return False


@pytest.fixture
def cache_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the cache, which leaves a share of its disk free."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    options = "size=256m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "cache", cache], check=True)
    yield cache
    subprocess.run(["umount", cache], check=True)


def cached_mount(volume: VolumeConfig, directory: Path, size: int = 1 << 30) -> MountProcess:
    """A mount with a disk cache below `directory`."""
    options = ("--cache-dir", str(directory / "cache"), "--cache-size", str(size))
    return MountProcess(volume, directory, *options)


def check_all(directory: Path) -> None:
    """All files read back."""
    for name in NAMES:
        assert (directory / name).read_bytes() == CONTENTS[name]


@pytest.mark.usefixtures("cache_disk")
def test_the_disk_cache_serves_after_a_remount(
    volume: VolumeConfig, objectserver: ObjectServer, tmp_path: Path
) -> None:
    mounted = cached_mount(volume, tmp_path)
    try:
        fill(mounted.path)
        for _ in range(ROUNDS):
            mounted.stop()
            mounted.start()
            check_all(mounted.path)
            if is_cached(tmp_path / "cache"):
                break
        assert cached_bytes(tmp_path / "cache") >= len(NAMES) * SIZE
        for how in ("stop", "kill"):
            getattr(mounted, how)()
            mounted.start()
            away = {
                path: path.rename(path.with_suffix(".away"))
                for path in objects_of(volume, objectserver)
            }
            try:
                until(lambda: not read_pieces(mounted.path / "one", CONTENTS["one"]))
                check_all(mounted.path)
            finally:
                for path, other in away.items():
                    other.rename(path)
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "cache").rglob("*"))
    finally:
        mounted.clean()


def test_a_cache_directory_may_be_full_read_only_or_deleted(
    volume: VolumeConfig, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "cache", cache], check=True)
    try:
        mounted = cached_mount(volume, tmp_path)
        try:
            fill(mounted.path)
            for change in (None, "ro", "rw", "gone"):
                mounted.stop()
                mounted.start()
                if change in ("ro", "rw"):
                    options = f"remount,{change}"
                    subprocess.run(["mount", "-o", options, "cache", cache], check=True)
                elif change == "gone":
                    for path in cache.iterdir():
                        shutil.rmtree(path)
                check_all(mounted.path)
                assert cached_bytes(cache) <= 6 << 20
            assert "reading without it" in mounted.log.read_text()
            mounted.stop()
            subprocess.run(["mount", "-o", "remount,ro", cache], check=True)
            mounted.start()
            check_all(mounted.path)
            assert "no block cache in" in mounted.log.read_text()
        finally:
            mounted.clean()
    finally:
        subprocess.run(["umount", cache], check=True)


@pytest.mark.usefixtures("cache_disk")
def test_the_disk_cache_keeps_its_bound(volume: VolumeConfig, tmp_path: Path) -> None:
    bound = 2 * BLOCK_SIZE + (1 << 20)
    mounted = cached_mount(volume, tmp_path, bound)
    try:
        fill(mounted.path)
        for _ in range(2):
            mounted.stop()
            mounted.start()
            check_all(mounted.path)
            until(lambda: BLOCK_SIZE <= cached_bytes(tmp_path / "cache") <= bound)
    finally:
        mounted.clean()


async def test_the_daemon_gives_its_mounts_a_cache(
    volume: VolumeConfig, tmp_path: Path, cache_disk: Path
) -> None:
    async def nobody(volume_id: str, path: Path) -> None:
        raise AssertionError(f"{volume_id} at {path} was restarted")

    options = MountOptions(service_users(tmp_path), cache_disk, 1 << 30)
    mounts = Mounts(tmp_path / "mounts", options, on_restart=nobody)
    try:
        await asyncio.to_thread(fill, await mounts.ensure(volume))
        for _ in range(ROUNDS):
            await mounts.release(volume.volume)
            await asyncio.to_thread(check_all, await mounts.ensure(volume))
            if await asyncio.to_thread(is_cached, cache_disk / volume.volume):
                break
        assert cached_bytes(cache_disk / volume.volume) >= len(NAMES) * SIZE
        told = await mounts.health(volume.volume)
        assert told["health"] == "ok"
    finally:
        await mounts.close(stop=True)
