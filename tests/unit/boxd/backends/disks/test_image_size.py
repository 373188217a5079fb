"""The size of a memory image before it is written."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

from boxd.backends.disks import image_size

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
STATUS = "Name:\tx\nRssAnon:\t    20 kB\nRssFile:\t 500 kB\nRssShmem:\t 7 kB\nVmSwap:\t 4 kB\n"


def files() -> int:
    """Bytes of the files without a name that this process has open."""
    return image_size.estimate([os.getpid()], 0).files


def test_private_memory_and_swap_count() -> None:
    assert image_size.private_bytes(STATUS) == 24 * 1024
    assert image_size.private_bytes("Name:\tzombie\n") == 0


def test_memory_is_the_larger_figure() -> None:
    cgroup = image_size.estimate([os.getpid()], 1 << 40)
    assert cgroup.memory == 1 << 40
    private = image_size.estimate([os.getpid()], 1).memory
    assert private > MIB
    assert image_size.estimate([os.getpid()] * 2, 1).memory > 1.9 * private


def test_a_removed_file_counts_once_by_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    before = files()
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(range(256)) * (MIB >> 8))
        file.truncate(64 * MIB)
        file.flush()
        os.fsync(file.fileno())
        assert files() == before
        (tmp_path / "file").unlink()
        other = os.dup(file.fileno())
        memory = mmap.mmap(other, MIB)
        assert MIB <= files() - before < 2 * MIB
        os.close(other)
    assert MIB <= files() - before < 2 * MIB
    memory.close()
    assert files() == before


def test_files_without_a_name_from_the_start_count(tmp_path: Path) -> None:
    before = files()
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        file.write(bytes(range(256)) * (MIB >> 8))
        file.flush()
        os.fsync(file.fileno())
        assert files() - before >= MIB


def test_a_file_with_another_name_and_memory_files_do_not_count(tmp_path: Path) -> None:
    before = files()
    (tmp_path / "one").write_bytes(b"x" * MIB)
    os.link(tmp_path / "one", tmp_path / "two")
    with (tmp_path / "one").open("rb"):
        (tmp_path / "one").unlink()
        descriptor = os.memfd_create("memory")
        os.write(descriptor, b"x" * MIB)
        assert files() == before
        os.close(descriptor)


def test_the_devices_of_memory() -> None:
    table = (
        "30 25 0:25 / /dev/shm rw - tmpfs shm rw,size=1k\n31 25 0:26 / / rw - overlay overlay rw\n"
    )
    assert image_size.memory_devices(table) == {os.makedev(0, 25)}


def test_names_that_a_box_gives_hide_no_file_system() -> None:
    """A form feed and NEL end no line of mountinfo; a box renames its /dev/null."""
    table = "30 22 0:25 /null /dev/a\x0cb\x85c rw - tmpfs tmpfs rw\n"
    assert image_size.memory_devices(table) == {os.makedev(0, 25)}


def test_a_process_that_is_gone_counts_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert image_size.estimate([pid], 5) == image_size.ImageSize(5, 0)
