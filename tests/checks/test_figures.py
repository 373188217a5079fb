"""The long figures record the commit of each round."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, cast

import pytest

from tests.plugins import figures
from tests.plugins.figures import Figures, Reached, status

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = {"--long": True, "--minutes": 60.0}


class Config:
    """Options of a long run, with the method of `pytest.Config` that reads them."""

    def getoption(self, name: str) -> object:
        return OPTIONS[name]


def rounds(count: int) -> None:
    """Do `count` rounds of a long run, then end it."""
    made = Figures(cast("pytest.Config", Config()), "CR-0-x")
    for number, _ in enumerate(made(ci=1, long=100), 1):
        if number > count:
            break


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one commit, in which the run takes place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").write_text("1")
    git("init", "-q")
    git("add", "code")
    commit()
    return tmp_path


def git(*command: str) -> None:
    subprocess.run(["git", *command], check=True, capture_output=True)


def commit() -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    git(*name, "commit", "-q", "-a", "-m", "x", "--allow-empty")


def test_rounds_are_counted_by_commit(repository: Path) -> None:
    rounds(3)
    (first,) = Reached.load("CR-0-x").commits
    (repository / "code").write_text("2")
    rounds(2)
    commit()
    rounds(1)
    reached = Reached.load("CR-0-x")
    assert reached.done == 6
    assert list(reached.commits.values()) == [3, 2, 1]
    changed = list(reached.commits)[1]
    assert changed == f"{first}+"
    (line,) = status()
    assert f"{first} 3, {changed} 2" in line


def test_what_was_kept_with_one_commit_is_read(repository: Path) -> None:
    file = repository / figures.KEPT / "CR-0-x.json"
    file.parent.mkdir(parents=True)
    kept = {"done": 7, "goal": 100, "seconds": 1.5, "commit": "abc1234", "last_failure": None}
    file.write_text(json.dumps({"name": "CR-0-x", **kept}))
    (line,) = status()
    assert "abc1234 7" in line
    rounds(1)
    reached = Reached.load("CR-0-x")
    assert reached.done == 8
    assert reached.commits["abc1234"] == 7
    assert reached.seconds >= 1.5
