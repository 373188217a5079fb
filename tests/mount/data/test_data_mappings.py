"""Mappings of files: private, shared, on descriptors that append; access times."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from pathlib import Path

PAGE = mmap.PAGESIZE
DAY_NS = 24 * 3600 * 10**9


@pytest.fixture(scope="module")
def drive(mounted_twice: tuple[Path, Path]) -> Path:
    """A drive mounted once for the tests of this file."""
    return mounted_twice[0]


@pytest.fixture
def file(drive: Path, request: pytest.FixtureRequest) -> Path:
    """A file of 16 pages and a bit, of this test."""
    path = drive / f"{request.node.name[:60]}"
    path.write_bytes(bytes(range(256)) * 16 * 16 + b"tail")
    return path


SIZE = 16 * PAGE + 4


def test_a_private_mapping_changes_nothing(file: Path) -> None:
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
    ):
        mapped[5:10] = b"mine!"
        assert mapped[:10] == bytes(range(5)) + b"mine!"
    assert file.read_bytes()[:10] == bytes(range(10))


def test_a_shared_mapping_is_the_file(file: Path) -> None:
    with file.open("r+b", buffering=0) as opened:
        with mmap.mmap(opened.fileno(), 0) as mapped:
            mapped[PAGE - 2 : PAGE + 2] = b"page"
            assert os.pread(opened.fileno(), 4, PAGE - 2) == b"page", "read(2) sees it at once"
            os.pwrite(opened.fileno(), b"write", 3 * PAGE)
            assert mapped[3 * PAGE : 3 * PAGE + 5] == b"write", "and the mapping sees write(2)"
            mapped[SIZE - 4 :] = b"TAIL"
            mapped.flush()
        assert os.fstat(opened.fileno()).st_size == SIZE
    data = file.read_bytes()
    assert (data[PAGE - 2 : PAGE + 2], data[-4:], len(data)) == (b"page", b"TAIL", SIZE)


def test_a_mapping_outlives_its_descriptor(file: Path) -> None:
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
    mapped[7 * PAGE] = 0x55
    mapped.close()
    until(lambda: file.read_bytes()[7 * PAGE] == 0x55)


def test_processes_share_a_mapping(file: Path) -> None:
    program = (
        "import mmap, sys\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "m = mmap.mmap(f.fileno(), 0)\n"
        "m[9] = m[8] + 1\n"
    )
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        for number in range(5):
            mapped[8] = 100 + number
            subprocess.run([sys.executable, "-c", program, file], check=True)
            assert mapped[9] == 101 + number


def test_a_mapping_behind_the_end_is_a_bus_error(file: Path) -> None:
    program = (
        "import mmap, os, sys\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "m = mmap.mmap(f.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 10)\n"
        "print(m[9], flush=True)\n"
        "m[5 * mmap.PAGESIZE]\n"
    )
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"9\n", -signal.SIGBUS)


# -- descriptors that append --


def test_append_descriptors_cannot_be_mapped_shared(file: Path) -> None:
    """A page that is written back could not be told from an append."""
    with file.open("a+b", buffering=0) as opened:
        with pytest.raises(OSError, match="No such device") as failure:
            mmap.mmap(opened.fileno(), 0)
        assert failure.value.errno == errno.ENODEV
        with mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
            assert mapped[:] == file.read_bytes()


def test_mapped_pages_keep_their_place_beside_appends(file: Path) -> None:
    wanted = bytearray(file.read_bytes())
    with (
        file.open("a+b", buffering=0) as appending,
        file.open("r+b", buffering=0) as opened,
        mmap.mmap(opened.fileno(), 0) as mapped,
    ):
        for page in range(0, 16, 3):
            mapped[page * PAGE : page * PAGE + 3] = b"map"
            wanted[page * PAGE : page * PAGE + 3] = b"map"
            appending.write(b"appended")
            wanted += b"appended"
            mapped.flush()
    assert file.read_bytes() == wanted


def test_appends_of_another_mount_are_kept(mounted_twice: tuple[Path, Path]) -> None:
    here, there = (path / "both" for path in mounted_twice)
    wanted = bytearray()
    with here.open("a+b", buffering=0) as mine, there.open("a+b", buffering=0) as other:
        for _number in range(30):
            for file, letter in ((mine, b"m"), (other, b"o")):
                file.write(letter * PAGE)
                os.fsync(file.fileno())
                wanted += letter * PAGE
    assert here.read_bytes() == wanted
    assert there.read_bytes() == wanted


@pytest.mark.parametrize("round_number", range(4))
def test_pages_appended_from_everywhere_are_all_kept(
    mounted_twice: tuple[Path, Path], round_number: int
) -> None:
    """Whole pages through descriptors for both ways, while others look."""
    paths = [path / f"everywhere{round_number}" for path in mounted_twice]
    paths[0].touch()
    done = threading.Event()

    def append(who: int) -> None:
        with paths[who % 2].open("a+b", buffering=0) as opened:
            for number in range(40):
                opened.write((b"%d %d " % (who, number)).ljust(PAGE, b"."))

    def look(path: Path) -> None:
        while not done.is_set():
            path.stat()

    with ThreadPoolExecutor(6) as threads:
        lookers = [threads.submit(look, path) for path in paths]
        writers = [threads.submit(append, who) for who in range(4)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        for looker in lookers:
            looker.result()
    data = paths[0].read_bytes()
    records = [data[at : at + PAGE].split()[:2] for at in range(0, len(data), PAGE)]
    assert sorted(records) == sorted([b"%d" % w, b"%d" % n] for w in range(4) for n in range(40))


# -- access times --


def test_the_first_read_after_a_change_moves_atime(
    file: Path, mounted_twice: tuple[Path, Path]
) -> None:
    there = mounted_twice[1] / file.name
    written = file.stat()
    before = time.time_ns()
    file.read_bytes()
    read = file.stat()
    assert read.st_atime_ns >= before - 10**9
    assert read.st_atime_ns > written.st_atime_ns
    assert (read.st_mtime_ns, read.st_ctime_ns) == (written.st_mtime_ns, written.st_ctime_ns)
    # It is told in the background: a look beside that may miss it.
    until(lambda: there.stat().st_atime_ns == read.st_atime_ns)
    file.read_bytes()
    assert file.stat().st_atime_ns == read.st_atime_ns, "not again: it is later than the change"
    os.utime(file, ns=(time.time_ns() - DAY_NS - 10**9, written.st_mtime_ns - 2 * DAY_NS))
    old = file.stat().st_atime_ns
    file.read_bytes()
    assert file.stat().st_atime_ns > old


def test_atime_reaches_other_mounts(mounted_twice: tuple[Path, Path]) -> None:
    here, there = (path / "f" for path in mounted_twice)
    here.write_bytes(b"x")
    old = there.stat().st_atime_ns
    here.read_bytes()
    until(lambda: there.stat().st_atime_ns > old)
    assert there.stat().st_atime_ns == here.stat().st_atime_ns


def test_what_a_user_sets_is_kept(file: Path) -> None:
    for _ in range(5):
        file.write_bytes(b"x")
        file.read_bytes()
        os.utime(file, ns=(5, 6))
        assert file.stat().st_atime_ns == 5
    descriptor = os.open(file, os.O_RDONLY | os.O_NOATIME)
    os.read(descriptor, 1)
    os.close(descriptor)
    assert file.stat().st_atime_ns == 5


def test_directories_and_links_have_access_times(drive: Path) -> None:
    directory, link = drive / "directory", drive / "link"
    directory.mkdir()
    (directory / "entry").touch()
    link.symlink_to("directory")
    old = directory.stat().st_atime_ns, link.lstat().st_atime_ns
    os.listdir(directory)
    os.readlink(link)
    new = directory.stat().st_atime_ns, link.lstat().st_atime_ns
    assert new[0] > old[0]
    assert new[1] > old[1]
