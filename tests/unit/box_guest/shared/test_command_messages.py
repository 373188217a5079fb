"""Messages about background commands, as a hostile side could send them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from box_guest.shared import command_messages as messages
from box_guest.shared.command_messages import CommandState, Frames, command_state, command_states
from box_guest.shared.requests import (
    BAD,
    Lines,
    MalformedMessage,
    Refused,
    decode_line,
    encode_line,
    failure,
    result_of,
    success,
)

RUNNING = CommandState(
    id="0123456789abcdef",
    cmd="make",
    running=True,
    exit_code=None,
    signal=None,
    pid=42,
    started=1.5,
    ended=None,
    output_bytes=10,
    dropped_bytes=2,
    stdin_open=True,
    keep_awake=True,
    timeout_s=None,
)
EXITED = replace(RUNNING, running=False, exit_code=137, signal="KILL", ended=2.5, timeout_s=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("state", [RUNNING, EXITED])
def test_a_description_survives_the_way(state: CommandState) -> None:
    line = success({"command": state.to_json()})
    assert command_state(result_of(line[:-1])["command"]) == state


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"id": 1},
        {"id": "0123456789ABCDEF"},
        {"cmd": None},
        {"cmd": "x" * 1001},
        {"running": 1},
        {"running": False},
        {"exit_code": 0},
        {"ended": 1.0},
        {"signal": "a b"},
        {"signal": "x" * 17},
        {"pid": 0},
        {"pid": True},
        {"started": "now"},
        {"started": float("nan")},
        {"started": float("inf")},
        {"started": -1},
        {"started": True},
        {"output_bytes": -1},
        {"output_bytes": 1 << 63},
        {"dropped_bytes": 1.0},
        {"stdin_open": None},
        {"keep_awake": "yes"},
        {"timeout_s": 0},
    ],
)
def test_a_wrong_description_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        command_state({**RUNNING.to_json(), **change})


@given(JSON)
def test_no_value_is_taken_for_a_description(value: object) -> None:
    with pytest.raises(MalformedMessage):
        command_state(value)


def test_a_lone_surrogate_of_a_command_is_replaced() -> None:
    assert command_state({**RUNNING.to_json(), "cmd": "a\ud800"}).cmd == "a?"


def test_a_list_is_bounded() -> None:
    assert command_states([RUNNING.to_json()] * 64) == [RUNNING] * 64
    malformed: list[object] = [[RUNNING.to_json()] * 65, {}, None, [1]]
    for wrong in malformed:
        with pytest.raises(MalformedMessage):
            command_states(wrong)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.binary(max_size=300))), st.integers(1, 400)
)
def test_frames_arrive_however_they_are_cut(parts: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(messages.frame(kind, content) for kind, content in parts)
    frames, found = Frames(), []
    for start in range(0, len(data), size):
        found += list(frames.add(data[start : start + size]))
    assert found == parts


@pytest.mark.parametrize(
    "data", [b"\0\0\0\0\1x", b"\5\0\0\0\1x", b"\1\0\1\0\1", b"\1\xff\xff\xff\xff"]
)
def test_a_wrong_frame_is_refused_at_its_head(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        list(Frames().add(data))


def test_gaps_and_ends_are_checked() -> None:
    [(kind, content)] = Frames().add(messages.gap(7))
    assert (kind, messages.gap_size(content)) == (messages.DROPPED, 7)
    for wrong in (b"", b"x" * 7, bytes(8), b"\xff" * 8):
        with pytest.raises(MalformedMessage):
            messages.gap_size(wrong)
    for wrong in (b"", b"[]", b"{}", b"[" * 60_000):
        with pytest.raises(MalformedMessage):
            messages.end_state(wrong)
    with pytest.raises(MalformedMessage):
        messages.frame(messages.STDOUT, bytes(messages.MAX_FRAME + 1))


def test_answers() -> None:
    with pytest.raises(Refused, match="no such command") as refused:
        result_of(failure(Refused(BAD, "no such command")))
    assert refused.value.kind == BAD
    with pytest.raises(Refused, match=r"^a[?]b$"):
        result_of(failure(Refused(BAD, "a\nb")))
    for line in (
        b"",
        b"[]",
        b"{}",
        b'{"ok": 1, "result": {}}',
        b'{"ok": true, "result": []}',
        b'{"ok": false, "error": 1, "kind": "bad"}',
        b'{"ok": false, "error": "x", "kind": "other"}',
    ):
        with pytest.raises(MalformedMessage):
            result_of(line)
    with pytest.raises(MalformedMessage):
        encode_line({"a": "x" * 100}, 50)
    assert decode_line(encode_line({"a": 1}, 50)) == {"a": 1}


@given(st.binary(max_size=60), st.integers(1, 20))
def test_the_first_line_is_split_off_and_bounded(data: bytes, size: int) -> None:
    lines, limit = Lines(40), 40
    split: tuple[bytes, bytes] | None = None
    start = 0
    try:
        while start < len(data) and split is None:
            split = lines.add(data[start : start + size])
            start += size
    except MalformedMessage:
        assert b"\n" not in data[: limit - 1]
        return
    if split is None:
        assert b"\n" not in data
        assert len(data) < limit
    else:
        line, rest = split
        assert line + b"\n" + rest + data[start:] == data
        assert b"\n" not in line
