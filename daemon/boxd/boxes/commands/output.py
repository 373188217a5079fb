"""Output of commands: storing its head and tail, splitting its lines, and masking secrets."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.boxes.limits.budgets.output import Part
    from boxd.secret import Secret

SHOWN_LINE = 512
"""Maximum size of a line that is shown while the command runs, in bytes."""
MASK = b"***"
PIECE = 64 * 1024
"""Maximum size to which small pieces are joined, in bytes."""


class HeadAndTail:
    """The head and the tail of a stream, together at most `limit` bytes.

    `part` is the share of the stream in its owner's allowance. When the allowance is used up, the
    current size becomes the limit.
    """

    def __init__(self, limit: int, part: Part | None = None) -> None:
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._part = part
        self._growing = limit
        """Bytes by which the stored output may still grow."""
        self._bound(limit)
        self.left_out = 0

    def _bound(self, limit: int) -> None:
        self._room = limit - limit // 2
        self._limit = limit // 2

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self._grow(len(data))
        head = data[: max(0, self._room - len(self._head))]
        self._head += head
        if rest := data[len(head) :]:
            # Pieces may be one byte each, and an object takes forty times as much memory.
            if self._tail and len(self._tail[-1]) + len(rest) <= PIECE:
                self._tail[-1] += rest
            else:
                self._tail.append(bytearray(rest))
            self._tail_size += len(rest)
            self._shorten()

    def _grow(self, size: int) -> None:
        request = min(size, self._growing)
        if self._part is None or request == 0:
            return
        grown = self._part.grow(request)
        self._growing -= grown
        if grown < request:
            self._growing = 0
            self._bound(self.size + grown)
            if over := self._head[self._room :]:
                del self._head[self._room :]
                self._tail.appendleft(over)
                self._tail_size += len(over)

    def _shorten(self) -> None:
        while self._tail_size > self._limit:
            over = self._tail_size - self._limit
            first = self._tail[0]
            dropped = min(over, len(first))
            if dropped < len(first):
                del first[:dropped]
            else:
                self._tail.popleft()
            self._tail_size -= dropped
            self.left_out += dropped

    @property
    def size(self) -> int:
        """Number of stored bytes."""
        return len(self._head) + self._tail_size

    def whole(self) -> bytes:
        """Return the stored bytes, with a line in place of the omitted ones."""
        tail = b"".join(self._tail)
        if not self.left_out:
            return bytes(self._head) + tail
        head = whole_characters(bytes(self._head))
        start = next((n for n, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        gap = self.left_out + len(self._head) - len(head) + start
        return head + f"\n[{gap} bytes left out]\n".encode() + tail[start:]


class Lines:
    """The complete lines of a stream, without their ends.

    Of a line longer than `limit`, only the head. `part` is the share of the stream in its owner's
    allowance, for the next line and for one that the caller stores. `cut`: a line exceeded the
    allowance.
    """

    def __init__(self, limit: int, part: Part | None = None) -> None:
        self._limit = limit
        self._part = part
        self._granted = limit if part is None else 0
        self._partial = bytearray()
        self.cut = False

    def add(self, data: bytes) -> list[bytes]:
        """Return the lines that the next bytes complete."""
        first, *more = data.split(b"\n")
        self._take(first)
        if not more:
            return []
        *between, rest = more
        lines = [bytes(self._partial), *(line[: self._allowed(len(line))] for line in between)]
        self._partial.clear()
        self._take(rest)
        return lines

    def rest(self) -> bytes:
        """Return the bytes after the last line end."""
        return bytes(self._partial)

    def _take(self, data: bytes) -> None:
        partial_size = len(self._partial)
        self._partial += data[: max(0, self._allowed(partial_size + len(data)) - partial_size)]

    def _allowed(self, size: int) -> int:
        """Return how much of a line of `size` bytes may be held. Granted bytes stay granted."""
        size = min(size, self._limit)
        if self._part is not None and size > self._granted:
            self._granted += self._part.grow(2 * (size - self._granted)) // 2
            self.cut = self.cut or size > self._granted
        return min(size, self._granted)


class Masked:
    """A stream with `***` in place of a secret, even if the secret is split over pieces.

    If the secret is None, all bytes pass unchanged.
    """

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret.reveal().encode() if secret is not None else b""
        self._pending = b""

    def add(self, data: bytes) -> bytes:
        """Return the bytes that can be passed on; hold back a possible start of the secret."""
        if not self._secret:
            return data
        whole = (self._pending + data).replace(self._secret, MASK)
        overlap = _overlap(whole, self._secret)
        self._pending = whole[len(whole) - overlap :]
        return whole[: len(whole) - overlap]

    def rest(self) -> bytes:
        """Return the bytes that are still held back, at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest


def _overlap(data: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of `data` are the start of the secret."""
    start = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(data[start:]):
            return len(data) - start
        start = data.find(secret[:1], start + 1)
    return 0


def shown_line(line: bytes) -> str:
    """Return a line for display, without control characters; empty for a blank line."""
    text = whole_characters(line[:SHOWN_LINE]).decode("utf-8", "replace").strip()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def last_shown(lines: Sequence[bytes]) -> str:
    """Return the last line that `shown_line` does not make empty, without formatting others."""
    return next((text for line in reversed(lines) if line and (text := shown_line(line))), "")


def whole_characters(data: bytes) -> bytes:
    """Return the bytes without an incomplete UTF-8 character at their end."""
    for cut in range(1, min(4, len(data)) + 1):
        byte = data[-cut]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return data[:-cut] if byte >= 0xC0 and length > cut else data
    return data
