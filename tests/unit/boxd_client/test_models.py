"""Values of the service: tolerant of new members, strict about types."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd_client import BoxInfo, CommandFailed, ProtocolError, Result, Snapshot

BOX = {"id": "1", "name": "web", "ref": "web", "state": "running"}


def test_a_box_with_nested_values() -> None:
    usage = {"at": "2026-01-02T03:04:05Z", "cpu_s": 1, "cpu_share": None, "pids": 3, "new": []}
    box = BoxInfo.from_json(BOX | {"usage": usage, "cpus": 2, "deadline": None, "colour": "red"})
    assert box.usage is not None
    assert (box.usage.at, box.usage.pids) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 3)
    assert (box.cpus, box.deadline, box.raw["colour"]) == (2, None, "red")


def test_a_member_with_another_name_than_its_field() -> None:
    assert Snapshot.from_json({"snapshot": "before", "box": "web"}).name == "before"


@pytest.mark.parametrize(
    "change",
    [
        {"state": None},
        {"state": 1},
        {"mem_mb": 1.5},
        {"mem_mb": True},
        {"cpus": "1"},
        {"durable": 1},
        {"created": "2026-01-02"},
        {"created": 5},
        {"usage": []},
        {"usage": {}},
    ],
)
def test_wrong_types(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        BoxInfo.from_json(BOX | change)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(["state", "usage", "created", "cpus", "removal", "durable"]), VALUES)
def test_any_value_is_taken_or_refused(name: str, value: object) -> None:
    try:
        BoxInfo.from_json(BOX | {name: value})
    except ProtocolError:
        return


def test_a_result() -> None:
    result = Result(2, b"\xffok\n", b"first\nlast\n")
    assert result.stdout == "\ufffdok\n"
    with pytest.raises(CommandFailed, match="code 2: last"):
        result.check()
    assert Result(0).check() == Result(0)
