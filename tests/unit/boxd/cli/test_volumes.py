"""`boxd volumes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli import main
from wrkfs.meta.delegations.delta import cut_record
from wrkfs.meta.delegations.journal import Journal, Owner
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_volumes_without_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["volumes", "ls", "--state-dir", str(tmp_path)]) == 1
    assert "has no service yet" in capsys.readouterr().err
    words = ["volumes", "restore", "v", "--workspace", "ws1", "--state-dir", str(tmp_path)]
    assert main.main(words) == 1
    assert "has no service yet" in capsys.readouterr().err
    taken = tmp_path / "taken"
    taken.write_text("mine")
    words = ["volumes", "credentials", "v", str(taken), "--state-dir", str(tmp_path)]
    assert main.main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_journals_without_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["volumes", "journal", "--state-dir", str(tmp_path)]
    assert main.main(words) == 0
    (heads,) = capsys.readouterr().out.splitlines()
    assert heads.split()[0] == "JOURNAL"
    journal = Journal(tmp_path / "journals", Owner("v1", SessionId(3), 1))
    journal.append([cut_record(Ino(7), b"removed")])
    journal.close(keep=True)
    assert main.main(words) == 0
    assert "'removed'" in capsys.readouterr().out.splitlines()[1]
    assert main.main([*words, "--show", "v1-3"]) == 0
    assert capsys.readouterr().out == "name 'removed' in directory 7: removed\n"
    assert main.main([*words, "--show", "v1-4"]) != 0
    assert "`boxd volumes journal` lists them" in capsys.readouterr().err
