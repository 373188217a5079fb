"""What all boxes share is raised, never lowered, and told where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.shares import SHARES, Share, command, lacking, lift

if TYPE_CHECKING:
    import pytest


def settings(place: Path, values: dict[Share, str]) -> Path:
    """A directory like /proc/sys."""
    for share, text in values.items():
        share.file(place).parent.mkdir(parents=True, exist_ok=True)
        share.file(place).write_text(text)
    return place


def test_every_setting_is_one_of_this_kernel() -> None:
    assert [share.name for share in SHARES if share.present() is None] == []


def test_too_little_is_raised(tmp_path: Path) -> None:
    place = settings(tmp_path, dict.fromkeys(SHARES, "128\n"))
    assert lift(place) == (list(SHARES), [])
    assert lacking(place) == []
    assert [share.present(place) for share in SHARES] == [share.least for share in SHARES]


def test_enough_stays(tmp_path: Path) -> None:
    place = settings(tmp_path, {one: str(one.least and one.least + 1) for one in SHARES})
    assert lift(place) == ([], [])
    assert [share.present(place) for share in SHARES] == [
        share.least and share.least + 1 for share in SHARES
    ]


def test_what_a_kernel_does_not_know_does_not_lack(tmp_path: Path) -> None:
    assert lift(tmp_path) == ([], [])


def test_a_read_only_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container."""
    place = settings(tmp_path, dict.fromkeys(SHARES, "128"))

    def refuse(self: Path, text: str) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert lift(place) == ([], list(SHARES))
    assert command(list(SHARES[:2])) == (
        "sysctl -w fs.inotify.max_user_instances=4194304 fs.inotify.max_user_watches=33554432"
    )
