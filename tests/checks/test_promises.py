"""Every promise of GUARANTEES.md that is not pending has a test marked with its id."""

from __future__ import annotations

import re

from tests.checks.source import ROOT, python_files

LINE = re.compile(r"^\| (?P<id>[VDSL][0-9]) \| .* \| (?P<state>pending|proven.*?) \|$", re.M)
MARKER = re.compile(r"mark\.promise\(\"(?P<id>[VDSL][0-9])\"\)")


def promises() -> dict[str, str]:
    text = (ROOT / "GUARANTEES.md").read_text()
    return {match["id"]: match["state"] for match in LINE.finditer(text)}


def proven_by_tests() -> set[str]:
    return {
        match["id"]
        for path in python_files()
        if path.name.startswith("test_")
        for match in MARKER.finditer(path.read_text())
    }


def test_all_promises_are_listed() -> None:
    wanted = {f"V{n}" for n in range(1, 8)} | {f"D{n}" for n in range(1, 5)}
    wanted |= {f"S{n}" for n in range(1, 6)} | {"L1", "L2"}
    assert set(promises()) == wanted


def test_every_promise_that_is_not_pending_has_a_test() -> None:
    bare = {name for name, state in promises().items() if state != "pending"} - proven_by_tests()
    assert not bare


def test_no_marker_names_an_unknown_promise() -> None:
    assert proven_by_tests() <= set(promises())


def test_the_tests_that_are_named_are_there() -> None:
    paths = [str(path) for path in python_files()]
    for name, state in promises().items():
        for named in re.findall(r"`([\w/]*test_\w+\.py)`", state):
            assert any(path.endswith(f"/{named}") for path in paths), f"{name} names {named}"
