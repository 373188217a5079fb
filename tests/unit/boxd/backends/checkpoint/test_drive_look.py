"""What is looked up on a drive before a box runs on: never behind a symbolic link."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import drive_look

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = tmp_path / "drive"
    (drive / "dir").mkdir(parents=True)
    (drive / "dir" / "file").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (drive / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(drive / "pipe")
    (drive / os.fsdecode(b"\xff")).touch()
    names = [
        "",
        "/dir",
        "/dir/file",
        "/pipe",
        "/\xff",
        "/link",
        "/link/file",
        "/gone",
        "/dir/file/x",
    ]
    request = json.dumps({"root": str(drive), "names": names})
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    monkeypatch.setattr(sys, "stdout", said)
    drive_look.main()
    directory, file, pipe, link = stat.S_IFDIR, stat.S_IFREG, stat.S_IFIFO, stat.S_IFLNK
    assert json.loads(said.getvalue()) == [
        *(directory, directory, file, pipe, file),
        *(link, 0, 0, 0),
    ]
