"""The command line: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from boxd.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("serve", "--reuse-port"),
        ("doctor", "--trusted-proxy"),
    ],
)
def test_a_flag_without_effect_is_refused(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as usage:
        main.parser().parse_args([command, flag, "1h"])
    assert usage.value.code == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        (["srve"], "serve"),
        (["images", "biuld"], "build"),
        (["zzzzzz"], None),
        (["s" * 99999], None),
    ],
)
def test_an_unknown_command_suggests_the_nearest(
    typed: list[str], suggested: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as usage:
        main.parser().parse_args(typed)
    assert usage.value.code == 2
    text = capsys.readouterr().err
    assert ("Did you mean" in text) is (suggested is not None)
    assert suggested is None or f"Did you mean {suggested}?" in text
    assert len(text) < 1000


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    assert main.main(["serve", *state, "--ssh-addr", "here"]) == 2
    assert "boxd: --ssh-addr" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main.main(["dance"])
    assert usage.value.code == 2
    assert main.main(["images", "build", "nope", *state]) == 2
    assert "'nope'" in capsys.readouterr().err


def test_an_interruption_while_modules_are_imported_is_quiet(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'boxd.maintenance': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from boxd.cli.main import main\n"
        f"sys.exit(main(['images', 'ls', '--state-dir', {str(tmp_path)!r}]))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (main.INTERRUPTED, b"", b"")


@pytest.mark.parametrize("flag", ["--idle-timeout", "--idle-reap", "--grace"])
def test_times_of_unused_boxes_are_durations(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["serve", "--state-dir", str(tmp_path), flag, "soon"]) == 2
    assert flag in capsys.readouterr().err
