"""What is kept and told of output: ends, lines, and nothing of a secret however it is cut."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.commands.output import (
    MASK,
    SHOWN_LINE,
    HeadAndTail,
    Lines,
    Masked,
    last_shown,
    shown_line,
)
from boxd.boxes.limits.budgets.output import ALWAYS, Allowance, Room
from boxd.secret import Secret

PIECES = st.lists(st.binary(max_size=40), max_size=20)
SECRET = "abaabc"


def masked(pieces: list[bytes], secret: str = SECRET) -> bytes:
    """What comes out of a stream that came in pieces."""
    stream = Masked(Secret(secret))
    return b"".join(stream.add(piece) for piece in pieces) + stream.rest()


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"ab", b"abaabc", b"\n"]), max_size=60))
def test_a_secret_never_passes_in_whatever_pieces_it_comes(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    shown = masked(pieces)
    assert SECRET.encode() not in shown
    assert shown == masked([whole])
    assert shown == whole.replace(SECRET.encode(), MASK)


@given(PIECES)
def test_without_a_secret_everything_passes(pieces: list[bytes]) -> None:
    stream = Masked(None)
    assert b"".join(stream.add(piece) for piece in pieces) == b"".join(pieces)
    assert stream.rest() == b""


def test_no_part_of_a_secret_is_passed_before_it_is_known_to_be_none() -> None:
    stream = Masked(Secret(SECRET))
    assert stream.add(b"x abaab") == b"x "
    assert stream.add(b"d") == b"abaabd"


@given(PIECES, st.integers(0, 100))
def test_head_and_tail_are_kept(pieces: list[bytes], limit: int) -> None:
    kept, whole = HeadAndTail(limit), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    if len(whole) <= limit:
        assert kept.whole() == whole
        assert kept.left_out == 0
    else:
        assert kept.left_out == len(whole) - limit
        assert b"bytes left out" in kept.whole()


@given(
    st.lists(st.integers(0, ALWAYS), max_size=12),
    st.integers(0, 5 * ALWAYS),
    st.integers(0, 4 * ALWAYS),
    st.integers(0, 12),
)
def test_what_is_kept_ends_where_the_allowance_does(
    sizes: list[int], limit: int, free: int, late: int
) -> None:
    budget, whole = Allowance(free), (b"0123456789" * sum(sizes))[: sum(sizes)]
    with Room(budget) as room:
        kept = HeadAndTail(limit, room.part())
        added = 0
        for number, size in enumerate(sizes):
            if number == late:
                room.part().grow(free)  # another stream takes what is left
            kept.add(whole[added : added + size])
            added += size
            assert min(limit, ALWAYS, added) <= kept.size <= min(limit, ALWAYS + free, added)
        left_out, half = len(whole) - kept.size, kept.size // 2
        assert kept.left_out == left_out
        gap = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        head, tail = whole[: kept.size - half], whole[len(whole) - half :]
        assert kept.whole() == head + gap + tail


def test_small_pieces_take_no_more_memory_than_large_ones() -> None:
    kept = HeadAndTail(200_000)
    tracemalloc.start()
    try:
        for _ in range(300_000):
            kept.add(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.size == 200_000
    assert held < 300_000


def test_no_character_is_cut_at_the_gap() -> None:
    kept = HeadAndTail(9)
    kept.add("é".encode() * 50)
    assert kept.whole().decode() == "éé\n[92 bytes left out]\néé"


@given(st.binary(max_size=300), st.integers(1, 20))
def test_lines_are_those_of_the_whole(data: bytes, step: int) -> None:
    lines = Lines(1000)
    found = [line for start in range(0, len(data), step) for line in lines.add(data[start:][:step])]
    assert [*found, lines.rest()] == data.split(b"\n")


def test_of_a_long_line_the_head_is_given() -> None:
    lines = Lines(3)
    assert lines.add(b"abcdef\ngh") == [b"abc"]
    assert lines.add(b"ijk\n\n") == [b"ghi", b""]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b" text\r", "text"),
        (b"\x1b[31mred\x07", "[31mred"),
        (b"\xff\xfe.", "\ufffd\ufffd."),
        (b" \t ", ""),
        ("é".encode() * SHOWN_LINE, "é" * (SHOWN_LINE // 2)),
        (b"x" + "é".encode() * SHOWN_LINE, "x" + "é" * ((SHOWN_LINE - 1) // 2)),
    ],
)
def test_lines_to_tell_are_short_and_harmless(line: bytes, shown: str) -> None:
    assert shown_line(line).strip() == shown


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([], ""),
        ([b"", b" \t", b"\xc3"], ""),
        ([b"one", b"two ", b"", b"\r"], "two"),
    ],
)
def test_of_many_lines_the_last_that_shows_something_is_told(
    lines: list[bytes], shown: str
) -> None:
    assert last_shown(lines) == shown
