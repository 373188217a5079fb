"""Starting and stopping from the command line."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from boxd import doctor
from boxd.cli import main
from boxd.embedded import statedir

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


def test_down_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    assert main.main(["down", "--state-dir", str(state)]) == 1
    assert f"there is no directory {state}" in capsys.readouterr().err
    state.mkdir()
    assert main.main(["down", "--state-dir", str(state)]) == 0
    assert capsys.readouterr().err == "nothing is running\n"
    assert list(state.iterdir()) == []


def test_down_waits_for_the_daemon_and_shows_the_number_of_boxes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [2, 2, 1, 0]
    asked: list[tuple[int, int]] = []
    tmp_path.chmod(0o700)
    monkeypatch.setattr(doctor, "boxes_left", lambda _: left.pop(0))
    # The next daemon may have the state directory already.
    monkeypatch.setattr(statedir, "lock_holder", lambda _: "4711" if left else "4712")
    monkeypatch.setattr(os, "kill", lambda *words: asked.append(words))
    assert main.main(["down", "--state-dir", str(tmp_path), "--idle-reap", "30d"]) == 0
    assert asked == [(4711, signal.SIGINT)]
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in told if "boxes left" in line] == ["2", "1", "0"]
    assert told[-1] == "stopped process 4711"


def test_down_accepts_a_daemon_that_has_just_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise ProcessLookupError

    holders = ["4711", None]
    monkeypatch.setattr(statedir, "lock_holder", lambda _: holders.pop(0))
    monkeypatch.setattr(os, "kill", kill)
    assert main.main(["down", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "stopped process 4711\n"
