"""The box's table of mounts, as the attaching process reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.backends.oci import attach

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TABLE = b"""\
30 20 0:25 / /wrk rw - fuse.wrkfs wrkfs rw
31 20 0:26 / /wrk/a\\040b rw - tmpfs tmpfs rw
32 30 0:27 / /wrk rw - fuse.wrkfs wrkfs rw
"""


def test_mounts_that_lie_upon_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_bytes(TABLE)
    monkeypatch.setattr(attach, "_TABLE", str(tmp_path / "mountinfo"))
    assert attach._mounts_at("/wrk") == [30, 32]
    assert attach._mounts_at("/proc/stat") == []


def test_a_table_without_an_end_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_TABLE", "/dev/zero")
    assert attach._mounts_at("/wrk") == []
