"""The error for an unknown command of `wrkfs`."""

from __future__ import annotations

import pytest

from wrkfs import cli


def test_an_unknown_command_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["wrkfs", "fskc"])
    with pytest.raises(SystemExit) as usage:
        cli.main()
    assert usage.value.code == 2
    assert "Did you mean fsck?" in capsys.readouterr().err
