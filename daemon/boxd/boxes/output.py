"""What is kept and told of the output of a command: its ends, its lines, and never a secret."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.boxes.allowance import Part
    from boxd.secret import Secret

SHOWN_LINE = 512
"""Bytes of a line that are told while the command runs."""
MASK = b"***"
PIECE = 64 * 1024
"""Bytes up to which small pieces are held as one."""


class Kept:
    """The head and the tail of a stream, together at most `limit` bytes.

    `part`: what it may hold of its owner's allowance. Once that gives no more, what is held then is
    the limit.
    """

    def __init__(self, limit: int, part: Part | None = None) -> None:
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._part = part
        self._growing = limit
        """Bytes that it may still grow by."""
        self._bound(limit)
        self.left_out = 0

    def _bound(self, limit: int) -> None:
        self._room = limit - limit // 2
        self._limit = limit // 2

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._grow(len(data))
        taken = data[: max(0, self._room - len(self._head))]
        self._head += taken
        if rest := data[len(taken) :]:
            # Pieces may be of a byte each, which as objects take forty times as much.
            if self._tail and len(self._tail[-1]) + len(rest) <= PIECE:
                self._tail[-1] += rest
            else:
                self._tail.append(bytearray(rest))
            self._tail_size += len(rest)
            self._shorten()

    def _grow(self, size: int) -> None:
        wanted = min(size, self._growing)
        if self._part is None or wanted == 0:
            return
        given = self._part.grow(wanted)
        self._growing -= given
        if given < wanted:
            self._growing = 0
            self._bound(self.size + given)
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
        """Bytes that are kept."""
        return len(self._head) + self._tail_size

    def whole(self) -> bytes:
        """What was kept, with a line in the place of what was not."""
        tail = b"".join(self._tail)
        if not self.left_out:
            return bytes(self._head) + tail
        head = whole_characters(bytes(self._head))
        start = next((n for n, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        gap = self.left_out + len(self._head) - len(head) + start
        return head + f"\n[{gap} bytes left out]\n".encode() + tail[start:]


class Lines:
    """The whole lines of a stream, without their ends; of one longer than `limit` the head.

    `part`: what of its owner's allowance it may hold, for the line that comes and for one that the
    caller remembers. `cut`: a line was longer than that.
    """

    def __init__(self, limit: int, part: Part | None = None) -> None:
        self._limit = limit
        self._part = part
        self._granted = limit if part is None else 0
        self._partial = bytearray()
        self.cut = False

    def add(self, data: bytes) -> list[bytes]:
        """The lines that the next bytes end."""
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
        """What stands after the last line's end."""
        return bytes(self._partial)

    def _take(self, data: bytes) -> None:
        held = len(self._partial)
        self._partial += data[: max(0, self._allowed(held + len(data)) - held)]

    def _allowed(self, size: int) -> int:
        """How much of a line of `size` bytes may be held. What was given once stays."""
        size = min(size, self._limit)
        if self._part is not None and size > self._granted:
            self._granted += self._part.grow(2 * (size - self._granted)) // 2
            self.cut = self.cut or size > self._granted
        return min(size, self._granted)


class Masked:
    """A stream without a secret, also where it comes in pieces: `***` stands in its place.

    Of None everything passes.
    """

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret.reveal().encode() if secret is not None else b""
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """What can be passed on; the beginning of what may be the secret waits for more."""
        if not self._secret:
            return data
        whole = (self._held + data).replace(self._secret, MASK)
        held = _overlap(whole, self._secret)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def rest(self) -> bytes:
        """At the end of the stream, what waited."""
        rest, self._held = self._held, b""
        return rest


def _overlap(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of the secret."""
    start = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(data[start:]):
            return len(data) - start
        start = data.find(secret[:1], start + 1)
    return 0


def shown_line(line: bytes) -> str:
    """A line to tell, without what a terminal would act on; empty for a blank one."""
    text = whole_characters(line[:SHOWN_LINE]).decode("utf-8", "replace").strip()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def last_shown(lines: Sequence[bytes]) -> str:
    """Of many lines the last one that shows something, as `shown_line`; the others cost nothing."""
    return next((shown for line in reversed(lines) if line and (shown := shown_line(line))), "")


def whole_characters(data: bytes) -> bytes:
    """Bytes without a character that is cut off at the end, if they are text before it."""
    for cut in range(1, min(4, len(data)) + 1):
        byte = data[-cut]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return data[:-cut] if byte >= 0xC0 and length > cut else data
    return data
