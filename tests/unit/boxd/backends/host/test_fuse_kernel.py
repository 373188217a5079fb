"""The question to the kernel whether mounts of FUSE can map ids."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from boxd.backends.host import fuse_kernel, mounts

MAPS_SINCE = (6, 12)
EXTENDED, ALLOWS = 1 << 30, 1 << 8


def request(*fields: int) -> bytes:
    """Return a first request with these fields after the header."""
    return bytes(40) + struct.pack(f"<{len(fields)}I", *fields)


def test_the_kernel_of_this_machine_answers_by_its_release(tmp_path: Path) -> None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert fuse_kernel.maps_ids(tmp_path) == (release >= MAPS_SINCE)
    assert mounts.device_at(Path("/proc/self/mountinfo"), str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        fuse_kernel.maps_ids(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("first", "is_offered"),
    [
        (request(7, 41, 0, EXTENDED, ALLOWS), True),
        (request(7, 38, 0, EXTENDED, 0xFFFFFFFF & ~ALLOWS), False),
        (request(7, 36, 0, 0, ALLOWS), False),
        (request(7, 31, 0, 0xFFFFFFFF), False),
    ],
    ids=["6.12", "6.1", "flags without the extension", "5.10"],
)
def test_only_the_flag_of_the_extension_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: bytes, is_offered: bool
) -> None:
    monkeypatch.setattr(fuse_kernel, "_first_request", lambda _: first)
    assert fuse_kernel.maps_ids(tmp_path) is is_offered
