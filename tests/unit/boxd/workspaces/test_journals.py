"""Journals of this host's mounts, as the operator sees them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from boxd.errors import NotFound, Unavailable
from boxd.model.volume import Volume
from boxd.workspaces import journals
from boxd.workspaces.journals import HostJournals, journal_lines, journal_row, read_journals
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.delegations.delta import cut_record
from wrkfs.meta.delegations.journal import Journal, Owner
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from pathlib import Path

VOLUME = Volume(
    id="v9",
    owner="alice",
    workspace="ws1",
    role="v1",
    schema="v1",
    prefix="p",
    sealed=b"",
    created=datetime(2026, 1, 2, tzinfo=UTC),
)


def leave(root: Path, *names: bytes) -> None:
    """Leave a journal with a removal of each name."""
    journal = Journal(root, Owner("v1", SessionId(3), 1))
    for name in names:
        journal.append([cut_record(Ino(7), name)])
    journal.close(keep=True)


def test_a_row_names_the_workspace_and_escapes_names(tmp_path: Path) -> None:
    leave(tmp_path, b"plain", b"\x1b[2J\xff", "ü".encode())
    (journal,) = read_journals([tmp_path])
    row = journal_row(journal, [VOLUME])
    assert row[:4] == ("v1-3", "alice/ws1", "3", "waits for a mount")
    assert row[4].endswith("Z")
    assert row[5] == "3"
    assert row[6] == r"'plain' '\x1b[2J\udcff' 'ü'"
    assert journal_row(journal, [])[1] == "-"


def test_a_fault_stands_beside_the_names(tmp_path: Path) -> None:
    leave(tmp_path, b"plain")
    (tmp_path / "v1-3" / "session").write_text("{")
    (journal,) = read_journals([tmp_path])
    row = journal_row(journal, [VOLUME])
    assert row[1:3] == ("-", "-")
    assert row[6] == "'plain' (the journal names no session)"


def test_the_lines_of_a_journal_are_escaped_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, b"a\n", b"b", b"c")
    monkeypatch.setattr(journals, "LINES_MAX", 2)
    assert list(journal_lines([tmp_path], "v1-3")) == [
        r"name 'a\n' in directory 7: removed",
        "name 'b' in directory 7: removed",
        "... and more; only the first 2 changes are shown",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "/etc", "v1-3/session", "\x1b"])
def test_only_journals_are_shown(tmp_path: Path, name: str) -> None:
    leave(tmp_path / "journals", b"a")
    leave(tmp_path / "other", b"a")
    with pytest.raises(NotFound, match="no journal") as failure:
        list(journal_lines([tmp_path / "journals"], name))
    assert str(failure.value).isprintable()


def test_an_unreadable_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journals, "kept_journals", refuse)
    with pytest.raises(Unavailable, match="Permission denied"):
        read_journals([tmp_path])


async def test_journals_of_an_earlier_release_are_there_when_a_volume_is_opened(
    tmp_path: Path,
) -> None:
    leave(tmp_path / "journals", b"a")
    config = VolumeConfig("v9", "v1", "", StoreConfig("", "", "", "", "", ""))
    async with HostJournals(tmp_path).open(config) as directory:
        assert [journal.path.name for journal in read_journals([directory])] == ["v1-3"]
    assert directory == tmp_path / "mounts" / "v9" / "process" / "journal"
    assert list((tmp_path / "journals").iterdir()) == []
