"""Encrypted streams: a reader returns the written bytes, or an error with the damage."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.backup.encryption import (
    CHUNK,
    FORMAT,
    MAGIC,
    PROOF,
    SALT,
    TAG,
    DecryptingReader,
    EncryptingWriter,
)
from boxd.backup.keyfile import Key
from boxd.errors import Unavailable

KEY = Key(bytes(range(32)), Path("right.key"))
OTHER = Key(bytes(32), Path("wrong.key"))
HEAD = len(MAGIC) + 1 + SALT + PROOF
STEP = CHUNK + TAG


def sealed(*pieces: bytes, key: Key = KEY) -> bytes:
    """An archive of some bytes."""
    file = io.BytesIO()
    writer = EncryptingWriter(file, key)
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    return file.getvalue()


def opened(data: bytes, key: Key = KEY) -> bytes:
    """Its bytes, read to the proven end."""
    return io.BufferedReader(DecryptingReader(io.BytesIO(data), key, "a.backup")).read()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_all_sizes_come_back(size: int) -> None:
    plain = bytes(n * n % 251 for n in range(size))
    data = sealed(plain)
    chunks = max(1, -(-size // CHUNK))
    assert len(data) == HEAD + size + chunks * TAG
    assert opened(data) == plain


@given(st.lists(st.binary(max_size=3000), max_size=60))
def test_pieces_of_any_size_make_one_stream(pieces: list[bytes]) -> None:
    assert opened(sealed(*pieces)) == b"".join(pieces)


def test_equal_contents_make_different_archives_without_them() -> None:
    plain = b"a secret that stands in clear nowhere" * 10
    first, second = sealed(plain), sealed(plain)
    assert first[HEAD:] != second[HEAD:]
    assert b"secret" not in first


def test_another_key_is_told_from_damage() -> None:
    with pytest.raises(Unavailable, match=r"not encrypted with the key in wrong\.key"):
        opened(sealed(b"x"), OTHER)


@pytest.mark.parametrize("at", [0, len(MAGIC) - 1])
def test_another_file_is_no_backup(at: int) -> None:
    data = bytearray(sealed(b"x"))
    data[at] ^= 1
    with pytest.raises(Unavailable, match="not a backup of boxd"):
        opened(bytes(data))


def test_newer_format_is_refused() -> None:
    data = bytearray(sealed(b"x"))
    data[len(MAGIC)] = FORMAT + 1
    with pytest.raises(Unavailable, match="use a newer boxd"):
        opened(bytes(data))


def test_every_flipped_byte_is_found() -> None:
    data = sealed(b"some plain text")
    for at in range(len(data)):
        for bit in (1, 128):
            flipped = bytearray(data)
            flipped[at] ^= bit
            with pytest.raises(Unavailable):
                opened(bytes(flipped))


def test_a_flipped_byte_is_told_with_its_place() -> None:
    data = bytearray(sealed(bytes(3 * CHUNK)))
    data[HEAD + STEP + 5] ^= 1
    with pytest.raises(Unavailable, match=f"between bytes {HEAD + STEP} and {HEAD + 2 * STEP}"):
        opened(bytes(data))


def test_every_cut_is_found() -> None:
    data = sealed(b"some plain text")
    for size in range(len(data)):
        with pytest.raises(Unavailable):
            opened(data[:size])


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_cut_between_chunks_is_told_as_one(chunks: int) -> None:
    data = sealed(bytes(3 * CHUNK))
    size = HEAD + chunks * STEP
    with pytest.raises(Unavailable, match=f"cut off at byte {size}"):
        opened(data[:size])


def test_chunks_cannot_be_moved_left_out_repeated_or_added() -> None:
    data = sealed(bytes(2 * CHUNK), bytes(100))
    head = data[:HEAD]
    first, second, last = data[HEAD : HEAD + STEP], data[HEAD + STEP : -116], data[-116:]
    assert opened(head + first + second + last)
    for order in (
        (second, first, last),
        (second, last),
        (first, last),
        (first, first, second, last),
        (first, second, last, b"\0"),
        (first, second, last, last),
        (last,),
    ):
        with pytest.raises(Unavailable):
            opened(head + b"".join(order))


def test_chunks_of_another_archive_do_not_fit() -> None:
    ours, theirs = sealed(bytes(CHUNK), b"a"), sealed(bytes(CHUNK), b"b")
    with pytest.raises(Unavailable):
        opened(ours[: HEAD + STEP] + theirs[HEAD + STEP :])
    with pytest.raises(Unavailable):
        opened(ours[:HEAD] + theirs[HEAD:])


def test_nothing_of_a_damaged_chunk_is_read() -> None:
    data = bytearray(sealed(bytes(CHUNK), b"end"))
    data[-1] ^= 1
    reader = DecryptingReader(io.BytesIO(bytes(data)), KEY, "a.backup")
    assert reader.read(CHUNK) == bytes(CHUNK)
    with pytest.raises(Unavailable):
        reader.read(1)


def test_an_archive_that_was_not_finished_is_cut_off() -> None:
    file = io.BytesIO()
    EncryptingWriter(file, KEY).write(bytes(2 * CHUNK))
    with pytest.raises(Unavailable, match="cut off"):
        opened(file.getvalue())
