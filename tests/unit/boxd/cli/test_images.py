"""`boxd images`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.cli import main
from tests.harness.boxes.tarballs import Tarball

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_image_comes_in_and_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state-dir", str(tmp_path / "state")]
    source = Tarball().system().symlink("wrk", "/etc").write(tmp_path / "mine.tar")
    assert main.main(["images", "import", "mine", str(source), *state]) == 0
    told = capsys.readouterr()
    assert "/wrk was a link: it is an empty directory now" in told.err
    assert "imported image mine: 0 MB in 3 files" in told.err
    assert main.main(["images", "ls", *state]) == 0
    assert "mine        yes    Imported from mine.tar" in capsys.readouterr().out
    assert main.main(["images", "rm", "mine", *state]) == 0
    assert main.main(["images", "rm", "mine", *state]) == 2
    assert "there is no image 'mine'" in capsys.readouterr().err
    assert main.main(["images", "import", "mine", str(tmp_path / "none"), *state]) == 2
    assert "none: No such file or directory" in capsys.readouterr().err


def test_images_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["images", "ls", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "BUILT", "DESCRIPTION"]
    assert lines[1].split()[:2] == ["debian", "no"]
