"""Names every failed test at the end of a run, also when a worker or the run itself crashes.

With `--failed-list FILE` each process of a run appends a test to FILE when it fails, before pytest
formats the report. While a test runs, a file beside FILE names it, so that it is known if its
process dies. `python -m tests.plugins.failed_tests FILE` prints both; `--begin` removes both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins.no_leaks import LEFT

if TYPE_CHECKING:
    from collections.abc import Generator

LIST = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--failed-list`."""
    parser.addoption("--failed-list", metavar="FILE", help="append each failed test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Finds the list; workers get the option from their controller."""
    name = config.getoption("--failed-list")
    if name is not None:
        path = config.stash[LIST] = config.rootpath / name
        path.parent.mkdir(parents=True, exist_ok=True)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Names the test as long as it runs."""
    if (path := item.config.stash.get(LIST, None)) is None:
        yield
        return
    # Workers in rooms of their own all have the same process id.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    present = path.with_name(f"{path.name}.{worker}.{os.getpid()}")
    present.write_text(item.nodeid + "\n")
    yield
    present.unlink(missing_ok=True)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None]:
    """Lists a failure before its traceback is formatted, which can end a worker."""
    expected = (pytest.skip.Exception, pytest.xfail.Exception)
    may_fail = item.get_closest_marker("xfail") is not None
    if call.excinfo is not None and not may_fail and not call.excinfo.errisinstance(expected):
        _append(item.config, item.nodeid)
        # Python's own tracebacks begin with the many frames of pytest.
        call.excinfo.traceback = call.excinfo.traceback.cut(path=item.path)
    yield


class Reports:
    """Lists what reports tell: failures without an exception, files that cannot be collected, and
    tests whose worker died."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of one phase of a test."""
        if report.failed:
            _append(self._config, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Of one file."""
        if report.failed:
            _append(self._config, report.nodeid)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begins to listen."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Reports(session.config), "failed-list")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists leaks, which fail a run but belong to no report."""
    session = terminalreporter._session
    for line in session.stash.get(LEFT, []) if session else []:
        _append(terminalreporter.config, f"LEAK {line}")


def failures(path: Path) -> list[str]:
    """What a list names, each once, and the tests that a process ran when it died."""
    lines = path.read_text().splitlines() if path.exists() else []
    for present in sorted(path.parent.glob(f"{path.name}.*")):
        lines += [f"{line} (its process died)" for line in present.read_text().splitlines()]
    return list(dict.fromkeys(lines))


def begin(path: Path) -> None:
    """Removes what an earlier run left."""
    for old in (path, *path.parent.glob(f"{path.name}.*")):
        old.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    """Prints the list, or begins a new one."""
    path = Path(arguments[-1])
    if arguments[0] == "--begin":
        begin(path)
        return
    for line in failures(path):
        print(f"FAILED {line}")


def _append(config: pytest.Config, line: str) -> None:
    """One write, so that lines of several workers do not mix."""
    if (path := config.stash.get(LIST, None)) is not None:
        with path.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
