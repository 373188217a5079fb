"""`wrkfs bench` on directories of its user."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from wrkfs.bench.place import Size
from wrkfs.cli import bench, main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TINY = Size(
    files=4,
    entries=4,
    mib=1,
    fsyncs=2,
    tree=4,
    clone=4,
    wheels=1,
    project=4,
    packages=1,
    transactions=2,
)


def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    """The exit status."""
    monkeypatch.setattr(bench, "QUICK", TINY)
    cache = ["--quick", "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", ["wrkfs", "bench", *cache, *words])
    return main()


def test_two_directories_are_compared_and_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    file = tmp_path / "figures.json"
    words = ["--peer", str(other), "--json", str(file), "--work", "create", "--work", "untar"]
    assert call(monkeypatch, tmp_path, str(mine), *words) == 0
    figures = json.loads(file.read_text())
    assert set(figures["works"]) == {"create", "untar"}
    for work in figures["works"].values():
        assert work[str(mine)] > 0
        assert work[str(other)] > 0
        assert work["ratio_min"] <= work["ratio"] <= work["ratio_max"]
    assert os.listdir(mine) == os.listdir(other) == []
    assert capsys.readouterr().out.splitlines()[0].split()[:3] == ["work", "unit", str(mine)]


def test_one_directory_is_measured_by_several_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path), "--work", "mkdir", "--repeat", "1", "--clients", "2"]
    assert call(monkeypatch, tmp_path, *words) == 0
    assert "ratio" not in capsys.readouterr().out


def test_a_directory_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, tmp_path, str(tmp_path / "none")) == 1
    assert capsys.readouterr().err.startswith("wrkfs bench: ")
