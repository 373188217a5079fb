"""Starting and stopping from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_refusal_to_serve_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    assert main.main(["serve", "--state-dir", str(state), "--ssh-addr", "127.0.0.1:0"]) == 1
    assert f"remedy: chown root {state} && chmod 700 {state}" in capsys.readouterr().err


def test_down_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    assert main.main(["down", "--state-dir", str(state)]) == 1
    assert f"there is no directory {state}" in capsys.readouterr().err
    state.mkdir()
    assert main.main(["down", "--state-dir", str(state)]) == 0
    assert capsys.readouterr().err == "nothing is running\n"
    assert list(state.iterdir()) == []
