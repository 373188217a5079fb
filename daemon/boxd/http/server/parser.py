"""Protocol adapter only. h11 with limits that hold no matter how the bytes arrive.

h11 limits only incomplete heads: it accepts a head of any length that arrives in one read. h11 also
accepts lines that end in a bare LF, and joins folded lines. A proxy in front of the service may
parse both differently. This parser rejects both before it parses a line.
"""

from __future__ import annotations

import re
from typing import NoReturn

import h11
from h11._receivebuffer import ReceiveBuffer  # h11 has no public way to bound a head

from boxd.http.requests.headers import MAX_HEADER_LINES

CROWD = 500
"""Events that are parsed in one turn; then other connections get a turn. One read of a body with
Content-Length is one event; one read of tiny chunks is tens of thousands."""
MALFORMED = "this is not a valid HTTP/1.1 request"
BARE_LF = "a line of the request ends in a bare LF; end each line with CR LF"
FOLDED = "a header line is folded; send each header on one line"
TOO_MANY_LINES = f"the request has more than {MAX_HEADER_LINES} header lines; send fewer"
_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"


class RequestParser(h11.Connection):
    """h11 that pauses after CROWD events. Unparsed bytes wait in its buffer."""

    paused = False
    """Whether the parser paused: its buffer may have further events."""
    _remaining = 0

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._receive_buffer = self._buffer = _BoundedBuffer(max_head_bytes)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and error text, after `next_event` has raised RemoteProtocolError."""
        return self._buffer.refusal

    @property
    def has_input(self) -> bool:
        """Whether received bytes wait to be parsed."""
        return bool(self._receive_buffer)

    def begin(self) -> None:
        """Begin a turn."""
        self.paused = False
        self._remaining = CROWD

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; NEED_DATA also at the end of the turn.

        Raises RemoteProtocolError.
        """
        if self._remaining == 0:
            self.paused = True
            return h11.NEED_DATA
        self._remaining -= 1
        return super().next_event()


class _BoundedBuffer(ReceiveBuffer):
    """Received bytes. It returns heads, trailers and chunk sizes of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.refusal = (400, MALFORMED)

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head or trailer; None while it is incomplete."""
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        begin = self._multiple_lines_search
        end = self._data.find(_END, begin, self._limit)
        if _BARE_LF.search(self._data, begin, self._limit if end < 0 else end):
            self._refuse(400, BARE_LF)
        if end < 0:
            self._check_length()
            self._multiple_lines_search = max(0, len(self._data) - len(_END) + 1)
            return None
        lines = self._extract(end + len(_END))[:end].split(b"\r\n")
        if len(lines) > MAX_HEADER_LINES + 1:
            self._refuse(431, TOO_MANY_LINES)
        if any(line.startswith((b" ", b"\t")) for line in lines):
            self._refuse(400, FOLDED)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line with the size of a chunk; None while it is incomplete."""
        end = self._data.find(b"\r\n", self._next_line_search, self._limit)
        if end < 0:
            self._check_length()
            self._next_line_search = max(0, len(self._data) - 1)
            return None
        return self._extract(end + 2)

    def _check_length(self) -> None:
        if len(self._data) >= self._limit:
            text = f"the head of the request is longer than {self._limit} bytes; send less"
            self._refuse(431, text)

    def _refuse(self, status: int, text: str) -> NoReturn:
        self.refusal = (status, text)
        raise h11.LocalProtocolError(text, error_status_hint=status)
