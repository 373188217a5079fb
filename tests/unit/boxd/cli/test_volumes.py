"""`boxd volumes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli import main

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
