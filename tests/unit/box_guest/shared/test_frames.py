"""Words and frames as they were, or a refusal."""

from __future__ import annotations

import os

import pytest

from box_guest.shared import frames
from box_guest.shared.frames import MalformedFrame


@pytest.mark.parametrize("words", [[], [b""], [b"", b""], [b"a", b"", b"\xff=\n"]])
def test_words_are_as_they_were(words: list[bytes]) -> None:
    assert frames.split(frames.joined(words), len(words)) == words


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(MalformedFrame, match="NUL"):
        frames.joined([b"a\0b"])
    with pytest.raises(MalformedFrame, match="cut off"):
        frames.split(b"a\0b", 0)
    with pytest.raises(MalformedFrame, match="at least 2 are needed"):
        frames.split(b"a\0", 2)


def test_an_environment_is_as_it_was() -> None:
    env = {"A": "", "B": "x=y\n", "C": "\udcff"}
    words = frames.variables(env)
    assert frames.environment(words) == {b"A": b"", b"B": b"x=y\n", b"C": b"\xff"}
    assert frames.environment([b"A=1", b"A=2"]) == {b"A": b"2"}
    for word in (b"", b"A", b"=1"):
        with pytest.raises(MalformedFrame, match="a variable"):
            frames.environment([word])


def test_a_frame_is_read_to_its_last_byte_and_no_further() -> None:
    reading, writing = os.pipe()
    os.write(writing, frames.framed(b"one") + frames.framed(b"") + b"rest")
    assert (frames.read(reading), frames.read(reading)) == (b"one", b"")
    assert os.read(reading, 100) == b"rest"
    os.write(writing, frames.framed(b"two")[:-1])
    os.close(writing)
    with pytest.raises(MalformedFrame, match="ended in the middle"):
        frames.read(reading)
    os.close(reading)


def test_frames_have_a_largest_size() -> None:
    with pytest.raises(MalformedFrame, match="do not fit into a frame"):
        frames.framed(bytes(frames.MAX_FRAME + 1))
    reading, writing = os.pipe()
    os.write(writing, b"\xff\xff\xff\xff")
    with pytest.raises(MalformedFrame, match="at most"):
        frames.read(reading)
    os.close(reading)
    os.close(writing)


def test_a_greeting_has_a_key() -> None:
    key = bytes(range(32))
    line = frames.greeting(key)
    assert (frames.key_in(line), len(line)) == (key, frames.GREETING_SIZE)
    wrong = (b"", line[:-1], line + b"x", line[1:] + b"\n", line[:-1] + b"x")
    for other in (*wrong, line.replace(b"00", b"zz"), line.replace(b"00", b"\xff\xff")):
        with pytest.raises(MalformedFrame, match="something other"):
            frames.key_in(other)
