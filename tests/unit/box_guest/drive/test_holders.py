"""The processes that use a mount, with processes and files of any name."""

from __future__ import annotations

from pathlib import Path

from box_guest.drive.holders import holders


def test_names_of_any_bytes(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fdinfo").mkdir(parents=True)
    (process / "comm").write_bytes(b"\xff\n")
    mapped = b"7f00-7f01 r-xp 0000 00:31 12 "
    (process / "maps").write_bytes(mapped + b"/root/\xff\n" + mapped + b"/wrk/lib\n")
    assert holders(Path("/wrk"), 31, most=16, proc=tmp_path) == ["pid 7 (\ufffd)"]
    assert holders(Path("/other"), 31, most=16, proc=tmp_path) == []
