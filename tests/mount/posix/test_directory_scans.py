"""Reading a directory beside other work: fresh names, fresh attributes, no cached page lost."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess

FILES = 600
FIRST = 420
"""Entries from here on are beyond the first request: the C library reads 64 KiB, and an entry with
its attributes takes 160 bytes."""


@pytest.fixture
def wrk(mount: Callable[[], MountProcess]) -> Path:
    """A fresh drive with many empty files, mounted."""
    path = mount().path
    for number in range(FILES):
        (path / f"{number:03}").touch()
    return path


def test_a_scan_leaves_the_pages_of_a_file_that_grows_meanwhile(wrk: Path) -> None:
    names = os.listdir(wrk)
    for place in range(FIRST, FILES, 10):
        file = wrk / names[place]
        with file.open("r+b") as opened, os.scandir(wrk) as scan:
            seen = [next(scan).name]
            os.ftruncate(opened.fileno(), 4096)
            with mmap.mmap(opened.fileno(), 4096) as mapped:
                mapped[:] = b"x" * 4096
                seen += [entry.name for entry in scan]
                assert os.fstat(opened.fileno()).st_size == 4096
                mapped.flush()
            os.fsync(opened.fileno())
        assert seen == names
        assert file.read_bytes() == b"x" * 4096


def test_a_scan_that_goes_on_shows_no_name_removed_before(wrk: Path) -> None:
    names = os.listdir(wrk)
    for place in range(FIRST, FILES, 10):
        with os.scandir(wrk) as scan:
            seen = {next(scan).name}
            (wrk / names[place]).unlink()
            seen |= {entry.name for entry in scan}
        assert names[place] not in seen
