"""Reading mount tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from boxd.backends.host import mounts

if TYPE_CHECKING:
    from pathlib import Path


def test_topmost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /a\\040b rw - tmpfs t rw\n"
        "3 2 0:6 / /a\\040b rw - tmpfs t rw\n"
    )
    assert mounts.device_at(table, "/") == "8:1"
    assert mounts.device_at(table, "/a b") == "0:6"
    assert mounts.device_at(table, "/c") is None
    assert mounts.mount_points(table) == ["/", "/a b", "/a b"]


def test_kind_of_a_file_system(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:99 / / rw shared:1 - xfs /dev/sda rw\n"
        f"2 1 {os.major(number)}:{os.minor(number)} / /a rw shared:2 - made-up none rw\n"
    )
    assert mounts.kind_at(tmp_path, table) == "made-up"
    table.write_text("")
    assert mounts.kind_at(tmp_path, table) == ""
