"""`box-guest trash`: paths of the box as paths on the drive, pages, and the output."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from box_guest import cli, protocol, trash

if TYPE_CHECKING:
    from pathlib import Path

PAGE = protocol.MAX_PAGE


class Agent:
    """Answers the requests of the command in place of the agent, and records them."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answers = list(answers)

    def __call__(self, path: Path, request: dict[str, Any]) -> dict[str, Any]:
        """Check a request as the agent does, and return the next answer."""
        del path
        protocol.encode(request)
        self.requests.append({"type": request["type"], **protocol.request_parameters(request)})
        return self._answers.pop(0)


def run(monkeypatch: pytest.MonkeyPatch, agent: Agent, *arguments: str) -> int:
    monkeypatch.setattr(cli, "ask", agent)
    monkeypatch.setattr(cli, "name_process", lambda: None)
    monkeypatch.setattr(os, "chdir", lambda _path: None)
    return cli.main(["trash", *arguments])


def entry(number: int, path: str | None = "a", **more: object) -> dict[str, Any]:
    return {
        "number": number,
        "path": path,
        "name": "a",
        "is_dir": False,
        "is_link": False,
        "size": 1536,
        "deleted": "2026-01-02T03:04:05.678+00:00",
        **more,
    }


RESULT: dict[str, Any] = {
    "path": "b/a",
    "files": 1,
    "directories": 0,
    "missing": [],
    "missing_count": 0,
    "earlier_count": 0,
}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/wrk", ""),
        ("/wrk/", ""),
        ("/wrk/a", "a"),
        ("//wrk//a/", "a"),
        ("/wrk/a/./b/../c", "a/c"),
        ("/wrk/\udcff", "\udcff"),
        ("/wrk/é", "é"),
        ("here", "dir/here"),
        ("../f", "f"),
        (".", "dir"),
    ],
)
def test_paths_of_the_box_are_paths_on_the_drive(
    monkeypatch: pytest.MonkeyPatch, text: str, path: str
) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: "/wrk/dir")
    assert trash.drive_path(text) == path


@pytest.mark.parametrize("text", ["/", "/wrkx", "/wrk/../etc", "../../x", "/etc/passwd"])
def test_other_paths_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: "/wrk/dir")
    with pytest.raises(argparse.ArgumentTypeError, match="is not on the drive; give a path below"):
        trash.drive_path(text)


def test_a_removed_working_directory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    with pytest.raises(argparse.ArgumentTypeError, match="working directory was removed"):
        trash.drive_path("f")
    assert trash.drive_path("/wrk/f") == "f"


def test_ls_reads_pages_until_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(
        {"entries": [entry(number) for number in range(PAGE)], "cursor": "one"},
        {"entries": [], "cursor": "two"},
        {"entries": [entry(PAGE)], "cursor": "three"},
    )
    assert run(monkeypatch, agent, "ls", "/wrk/d", "--limit", str(PAGE + 1)) == 0
    kind, below = "trash_list", "d"
    assert agent.requests == [
        {"type": kind, "path": below, "cursor": None, "limit": PAGE},
        {"type": kind, "path": below, "cursor": "one", "limit": 1},
        {"type": kind, "path": below, "cursor": "two", "limit": 1},
    ]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == PAGE + 2
    assert lines[-1] == "more entries exist; give a PATH, or a larger --limit"


def test_ls_shows_entries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        entry(7),
        entry(8, "d", is_dir=True),
        entry(9, "l", is_link=True),
        entry(10, "x\x1b[2J\udcff", size=5),
        entry(11, None),
    ]
    assert run(monkeypatch, Agent({"entries": entries, "cursor": None}), "ls") == 0
    time = "2026-01-02 03:04:05"
    assert capsys.readouterr().out.splitlines() == [
        f"         7  {time}     1.5 KiB  /wrk/a",
        f"         8  {time}   directory  /wrk/d",
        f"         9  {time}        link  /wrk/l",
        f"        10  {time}         5 B  '/wrk/x\\x1b[2J\\udcff'",
        f"        11  {time}     1.5 KiB  (unknown directory)/a",
    ]
    agent = Agent({"entries": entries, "cursor": None})
    assert run(monkeypatch, agent, "ls", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["complete"], len(answer["entries"])) == (True, 5)
    assert answer["entries"][3]["path"] == "/wrk/x\x1b[2J\udcff"


def test_restore_sends_a_path_or_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(RESULT, RESULT)
    assert run(monkeypatch, agent, "restore", "/wrk/a", "--to", "/wrk/b/a") == 0
    assert run(monkeypatch, agent, "restore", "--number", "12") == 0
    kind = "trash_restore"
    assert agent.requests == [
        {"type": kind, "path": "a", "number": None, "to": "b/a"},
        {"type": kind, "path": None, "number": 12, "to": None},
    ]
    assert capsys.readouterr().out == "/wrk/b/a restored; files: 1, directories: 0\n" * 2


@pytest.mark.parametrize("words", [["ls"], ["restore", "/wrk/a"]])
def test_the_mount_sends_its_removals_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(protocol, "DRIVE_DIR", PurePosixPath(tmp_path))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    agent = Agent({**RESULT, "entries": [], "cursor": None})
    if words[1:]:
        words = ["restore", f"{tmp_path}/a"]
    assert run(monkeypatch, agent, *words) == 0
    assert synced == [str(tmp_path)]


def test_restore_lists_entries_that_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [["b/a/x", "the path already exists"]]
    result = {**RESULT, "missing": missing, "missing_count": 3, "earlier_count": 2}
    assert run(monkeypatch, Agent(result), "restore", "/wrk/a") == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "not restored, the path already exists: /wrk/b/a/x",
        "not restored: 2 more",
        "further names that stay in the trash, because they were removed earlier: 2",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["restore"],
        ["restore", "/wrk/a", "--number", "3"],
        ["restore", "--number", "0"],
        ["restore", "--number", "x"],
        ["restore", "--number", "9" * 30],
        ["restore", "/etc/passwd"],
        ["restore", "/wrk/a", "--to", "/etc/passwd"],
        ["ls", "/etc"],
        ["ls", "--limit", "0"],
        ["ls", "--limit", "1000001"],
        ["empty"],
        [],
    ],
)
def test_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        run(monkeypatch, Agent(), *words)
    assert error.value.code == 2
    assert "usage: box-guest" in capsys.readouterr().err
