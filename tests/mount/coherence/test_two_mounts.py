"""Two mounts of one drive, and a Filesystem beside them: what one does the others see at once."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from wrkfs.fs import Filesystem
from wrkfs.paths import resolve
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from wrkfs.config import VolumeConfig

ROUNDS = 200


@pytest.fixture
def pair(mount: Callable[[], MountProcess]) -> tuple[Path, Path]:
    """Two mounts of one fresh drive."""
    return mount().path, mount().path


def test_names_and_bytes_are_seen_at_once(pair: tuple[Path, Path]) -> None:
    for number in range(ROUNDS):
        here, there = pair[number % 2], pair[1 - number % 2]
        name, data = f"f{number % 5}", str(number).encode() * (number % 50 + 1)
        assert not (there / name).exists() or number >= 5
        (here / name).write_bytes(data)
        assert (there / name).read_bytes() == data
        assert (there / name).stat().st_size == len(data)
        (there / name).rename(there / "moved")
        assert not (here / name).exists()
        assert (here / "moved").read_bytes() == data
        assert sorted(os.listdir(here)) == sorted(os.listdir(there))
        (here / "moved").unlink()
        assert not (there / "moved").exists()


def test_open_files_and_cached_pages_follow(pair: tuple[Path, Path]) -> None:
    here, there = pair
    (here / "f").write_bytes(b"0" * 10_000)
    with (there / "f").open("rb", buffering=0) as reader:
        for number in range(ROUNDS):
            assert os.pread(reader.fileno(), 10_000, 0) is not None
            data = str(number % 10).encode() * (10_000 - number)
            (here / "f").write_bytes(data)
            assert os.pread(reader.fileno(), 20_000, 0) == data
            assert os.fstat(reader.fileno()).st_size == len(data)


def test_appends_from_both_mounts_are_whole(pair: tuple[Path, Path]) -> None:
    lines = 300

    def append(which: int) -> None:
        with (pair[which] / "log").open("ab", buffering=0) as log:
            for number in range(lines):
                log.write(b"%d %d %s\n" % (which, number, b"x" * (number % 90)))

    threads = [threading.Thread(target=append, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = (pair[0] / "log").read_bytes().splitlines()
    assert len(found) == 2 * lines
    for which in range(2):
        mine = [line for line in found if line.startswith(b"%d " % which)]
        assert mine == [b"%d %d %s" % (which, n, b"x" * (n % 90)) for n in range(lines)]


def test_an_exclusive_create_has_one_winner(pair: tuple[Path, Path]) -> None:
    for number in range(50):
        winners: list[int] = []

        def create(which: int, number: int = number, winners: list[int] = winners) -> None:
            try:
                descriptor = os.open(
                    pair[which] / f"x{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY
                )
            except FileExistsError:
                return
            os.close(descriptor)
            winners.append(which)

        threads = [threading.Thread(target=create, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1


def test_a_log_can_be_followed_from_the_other_mount(pair: tuple[Path, Path]) -> None:
    here, there = pair
    with (here / "log").open("wb", buffering=0) as log, (there / "log").open("rb") as tail:
        for number in range(5):
            log.write(b"line %d\n" % number)
            got = b""

            def more() -> bool:
                nonlocal got
                got += tail.read()
                return got.endswith(b"\n")

            until(more)
            assert got == b"line %d\n" % number


def test_an_unlinked_file_lives_while_it_is_open_on_the_other_mount(
    pair: tuple[Path, Path],
) -> None:
    here, there = pair
    data = os.urandom(5 << 20)
    (here / "f").write_bytes(data)
    with (there / "f").open("rb", buffering=0) as reader:
        (here / "f").unlink()
        assert not (there / "f").exists()
        assert os.fstat(reader.fileno()).st_nlink == 0
        os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert reader.read(len(data) + 1)[: 1 << 20] == data[: 1 << 20]
    until(lambda: os.statvfs(here).f_bfree == os.statvfs(here).f_blocks)


async def test_a_filesystem_sees_mounts_and_mounts_see_it(
    mount: Callable[[], MountProcess], volume: VolumeConfig
) -> None:
    path = mount().path
    fs = await Filesystem.connect(volume, kind="http")
    try:
        for number in range(50):
            data = os.urandom(1000 * number)
            await asyncio.to_thread((path / "a").write_bytes, data)
            found = await resolve(fs, b"a")
            assert found.attr is not None
            handle = await fs.open(found.attr.ino, os.O_RDONLY)
            assert await handle.read(0, len(data) + 1) == data
            await handle.close()
            new = await fs.create_unlinked(0o644, Caller(0, 0))
            await new.write(0, data[::-1])
            assert await fs.publish(new.ino, ROOT_INO, b"b") == (number == 0)
            await new.close()
            assert await asyncio.to_thread((path / "b").read_bytes) == data[::-1]
    finally:
        await fs.close()
