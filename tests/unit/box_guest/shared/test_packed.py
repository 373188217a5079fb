"""Received packets that wait: in order, joined, no larger than their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from box_guest.shared.packed import MOST, Packed

PACKETS = st.lists(
    st.one_of(
        st.tuples(st.binary(min_size=1, max_size=300), st.sampled_from([None, 1])),
        st.tuples(st.integers(1, MOST).map(bytes), st.sampled_from([None, 1])),
        st.just("take"),
    ),
    max_size=60,
)


@given(PACKETS)
def test_each_stream_comes_out_as_it_went_in(steps: list[tuple[bytes, int | None] | str]) -> None:
    packed, went, came = Packed(), [], []

    def take() -> None:
        data, stream = packed.pop(0)
        assert 0 < len(data) <= MOST
        came.append((stream, data))

    for step in steps:
        if not isinstance(step, str):
            packed.append(step)
            went.append((step[1], step[0]))
        elif packed:
            take()
    while packed:
        take()
    assert _joined(came) == _joined(went)
    assert packed.memory == 0


def _joined(pieces: list[tuple[int | None, bytes]]) -> list[tuple[int | None, bytes]]:
    """Pieces of one stream that follow each other as one."""
    joined: list[tuple[int | None, bytes]] = []
    for stream, data in pieces:
        if joined and joined[-1][0] == stream:
            joined[-1] = (stream, joined[-1][1] + data)
        else:
            joined.append((stream, data))
    return joined


def test_a_window_of_single_bytes_takes_the_window() -> None:
    packed = Packed()
    for _ in range(1 << 16):
        packed.append((b"x", None))
    assert packed.memory < (1 << 16) + 100
    assert packed.pop(0) == (b"x" * (1 << 16), None)


def test_single_bytes_of_two_streams_take_six_times_theirs() -> None:
    packed = Packed()
    for number in range(1 << 16):
        packed.append((b"x", number % 2 or None))
    assert packed.memory == 6 << 16
    for number in range(1 << 16):
        assert packed.pop(0) == (b"x", number % 2 or None)
    with pytest.raises(IndexError):
        packed.pop(0)


def test_what_was_taken_is_let_go() -> None:
    packed = Packed()
    for _ in range(1000):
        packed.append((bytes(1000), 1))
        packed.append((bytes(1000), None))
        packed.pop(0)
        if packed.memory > 100_000:
            packed.pop(0)
    assert packed.memory < 200_000
