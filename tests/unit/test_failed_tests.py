"""A failed test is named at the end of a run, however the run ends."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.harness import pytester
from tests.plugins.failed_tests import begin, failures

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 50.0
NO_PARSER = """
import ast

def broken(*arguments, **options):
    raise SystemError("AST constructor recursion depth mismatch (before=1, after=2)")

def test_fails_while_python_cannot_parse(monkeypatch):
    ast.parse = broken
    assert 1 == 2

def test_comes_later():
    pass
"""
DIES = """
import os

def test_passes():
    pass

def test_dies():
    os._exit(9)
"""
FAILS = """
import pytest

def test_fails():
    assert 1 == 2

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_fails_at_its_end(broken):
    pass

@pytest.mark.xfail
def test_may_fail():
    assert 1 == 2

def test_is_skipped():
    pytest.skip("not here")
"""


def failed(directory: Path, text: str, *options: str) -> tuple[str, list[str]]:
    """Runs a file of tests as `make test` does; the output, and what the list names."""
    (directory / "test_it.py").write_text(text)
    done = subprocess.run(
        pytester.command(directory, *options),
        cwd=pytester.ROOT,
        env=pytester.environment(directory),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr, failures(directory / "failed")


def test_failures_are_listed_and_nothing_else(tmp_path: Path) -> None:
    shown, names = failed(tmp_path, FAILS)
    assert "assert 1 == 2" in shown
    assert "pluggy" not in shown
    assert names == ["test_it.py::test_fails", "test_it.py::test_fails_at_its_end"]


def test_a_worker_that_dies_leaves_the_name_of_its_test(tmp_path: Path) -> None:
    _, names = failed(tmp_path, DIES, "-n", "1")
    assert "test_it.py::test_dies" in [name.split()[0] for name in names]


def test_a_run_that_dies_leaves_the_name_of_its_test(tmp_path: Path) -> None:
    _, names = failed(tmp_path, DIES)
    assert names == ["test_it.py::test_dies (its process died)"]


def test_a_report_needs_no_parser(tmp_path: Path) -> None:
    """Python 3.11 cannot always parse a file: that must not end the worker."""
    shown, names = failed(tmp_path, NO_PARSER, "-n", "1")
    assert names == ["test_it.py::test_fails_while_python_cannot_parse"]
    assert "INTERNALERROR" not in shown
    assert "1 failed, 1 passed" in shown


def test_a_failure_is_listed_before_its_report_is_made(tmp_path: Path) -> None:
    _, names = failed(tmp_path, NO_PARSER, "-n", "1", "--tb=long")
    assert "test_it.py::test_fails_while_python_cannot_parse" in names


def test_a_file_that_cannot_be_loaded_is_listed(tmp_path: Path) -> None:
    _, names = failed(tmp_path, "import nothing_of_this_name\n")
    assert names == ["test_it.py"]


def test_a_new_run_begins_with_an_empty_list(tmp_path: Path) -> None:
    failed(tmp_path, DIES)
    begin(tmp_path / "failed")
    assert failures(tmp_path / "failed") == []
