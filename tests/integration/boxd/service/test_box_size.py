"""A box of a real service knows its own size: processors, memory and disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)
MIB = 1024 * 1024
SIZE = """
nproc; grep -c ^processor /proc/cpuinfo
python3 -c 'import os; print(os.cpu_count())'
free --mebi | awk '/^Mem/ { print $2 }'
"""
TINY = ["1", "1", "1", "512"]
"""Of the flavor `tiny`: half a processor, 512 MiB."""


def size(user: User, box: str) -> list[str]:
    """What programs of a session read."""
    return user.ssh(box, SIZE).split()


def test_processors_and_memory(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    assert size(user, "dev:debian:tiny") == TINY
    assert "suspended" in user.ssh("cli", "suspend dev")
    assert size(user, "dev") == TINY
    user.ssh("cli", "snapshot fork dev copy")
    assert size(user, "copy") == TINY
    assert size(user, "second:debian:tiny") == TINY  # made of a template, if one is ready


def test_a_variable_of_the_user_counts_more(daemon: Daemon, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    assert user.ssh("dev:debian:tiny", "OMP_NUM_THREADS=3 nproc") == "3"
    assert user.ssh("dev", "nproc --ignore=0; env | grep ^OMP") == "1\nOMP_NUM_THREADS=1"


def test_disk(daemon: Daemon, tmp_path: Path) -> None:
    """`df /` shows the volume of all boxes; `box-guest info` has the disk of the box."""
    user = User(daemon, tmp_path)
    user.ssh("dev:debian:tiny", "head -c 8M /dev/urandom >/root/file; sync")
    info = json.loads(user.ssh("dev", "box-guest info --json"))
    assert info["disk_limit"] == 4096 * MIB
    assert info["disk_used"] > 8 * MIB
