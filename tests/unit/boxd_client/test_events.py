"""The parser of server-sent events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd_client import BatchError, BatchExit, BatchOutput, Dropped, ProtocolError
from boxd_client.events import BatchEvents, CommandEvents, Event, EventParser

TEXT = (
    b": comment\n\nevent: a\ndata: 1\ndata:  2\nid: 7\n\r\nid: 8\r\ndata: \xc3\xa9\r\n\r\n"
    b"retry: 5\nevent: b\rdata\r\revent: c\n\nunknown\n\ndata: z\n\n"
)
EVENTS = [
    Event("a", "1\n 2", "7"),
    Event("message", "é", "8"),
    Event("b", ""),
    Event("c", ""),
    Event("message", "z"),
]


@given(st.lists(st.integers(1, 12), min_size=1))
def test_events_do_not_depend_on_the_pieces(sizes: list[int]) -> None:
    parser, events, place, number = EventParser(), [], 0, 0
    while place < len(TEXT):
        size = sizes[number % len(sizes)]
        events += parser.feed(TEXT[place : place + size])
        place, number = place + size, number + 1
    assert events == EVENTS
    assert not parser.pending


def test_an_incomplete_event_is_pending() -> None:
    parser = EventParser()
    assert parser.feed(b"event: exit\n") == []
    assert parser.pending


@pytest.mark.parametrize("text", [b"x" * 101, b"data: 123456789\n" * 10, b"data: \xff\n"])
def test_limits_and_encoding(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        EventParser(100).feed(text)


@given(st.binary(max_size=300))
def test_any_bytes_give_events_or_an_error(data: bytes) -> None:
    try:
        EventParser(200).feed(data)
    except ProtocolError:
        return


def test_dropped_output() -> None:
    assert CommandEvents().take(Event("dropped", '{"bytes": 12}')) == Dropped(12)


def test_a_batch() -> None:
    events = BatchEvents()
    values = [
        events.take(Event("stdout", '{"box": "a", "data": "eA=="}')),
        events.take(Event("exit", '{"box": "a", "code": 3}')),
        events.take(Event("failed", '{"box": "b", "status": 404, "error": "no box b"}')),
        events.take(Event("news", "")),
        events.take(Event("done", "{}")),
    ]
    expected = [
        BatchOutput("a", "stdout", b"x"),
        BatchExit("a", 3),
        BatchError("b", 404, "no box b"),
        None,
        None,
    ]
    assert values == expected
    assert events.done
