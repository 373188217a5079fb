"""Splits content into pieces that a slow line can send within the limit of one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PIECE = 256 * 1024


@runtime_checkable
class Readable(Protocol):
    """A file that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty: the file ends."""
        ...


def read_pieces(content: bytes | str | Readable | Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a text, of a file or of an iterable."""
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        for start in range(0, len(content), PIECE):
            yield bytes(content[start : start + PIECE])
        return
    if isinstance(content, Readable):
        while piece := content.read(PIECE):
            yield piece
    else:
        for piece in content:
            yield bytes(piece)
