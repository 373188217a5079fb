"""HTTP ranges, entity tags, dates and content types. Pure functions."""

from __future__ import annotations

import mimetypes
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from boxd.errors import BadRange, BadRequest

if TYPE_CHECKING:
    from boxd.http.requests.headers import HeaderLines

ANY: Literal["*"] = "*"
MAX_TAGS = 100
_RANGE = re.compile(rb"bytes=[ \t]*([0-9]{0,19})-([0-9]{0,19})[ \t]*", re.IGNORECASE)
_TAG = re.compile(rb'[ \t]*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')
_TYPES = mimetypes.MimeTypes(filenames=())
_CODED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_UNKNOWN = "application/octet-stream"
_TEXT_LIKE = frozenset({"application/json", "application/javascript", "image/svg+xml"})


@dataclass(frozen=True, slots=True)
class Tags:
    """The value of an If-Match or If-None-Match line: `*`, or a list of entity tags."""

    tags: frozenset[str] | Literal["*"]

    @property
    def anything(self) -> bool:
        """True for `*`."""
        return self.tags == ANY

    def strongly(self, tag: str) -> bool:
        """Return whether the list has `tag` by strong comparison: a weak tag never matches."""
        return self.tags == ANY or tag in self.tags

    def weakly(self, tag: str) -> bool:
        """Return whether the list has `tag` by weak comparison: as a strong or as a weak tag."""
        return self.strongly(tag) or f"W/{tag}" in self.tags


def parse_tags(value: bytes | None) -> Tags | None:
    """Parse an If-Match or If-None-Match value. Raises BadRequest if it is malformed."""
    if value is None:
        return None
    if value.strip() == b"*":
        return Tags(ANY)
    tags: set[str] = set()
    at = 0
    while at < len(value):
        match = _TAG.match(value, at)
        if match is None or len(tags) >= MAX_TAGS:
            raise BadRequest('an entity tag list is "..." or "...", "...", or *')
        tags.add(match[1].decode("latin-1"))
        at = match.end()
    if not tags:
        raise BadRequest("the entity tag list is empty")
    return Tags(frozenset(tags))


def parse_date(value: bytes | None) -> int | None:
    """Parse an HTTP date to seconds since the epoch; None for a malformed date."""
    if value is None:
        return None
    try:
        return int(parsedate_to_datetime(value.decode("latin-1")).timestamp())
    except (ValueError, OverflowError):
        return None


def range_applies(if_range: bytes | None, tag: str) -> bool:
    """Return whether a Range applies, given If-Range.

    A date cannot tell two versions apart, so an If-Range with a date never holds.
    """
    return if_range is None or if_range.strip().decode("latin-1") == tag


def parse_range(value: bytes | None, size: int) -> tuple[int, int] | None:
    """Parse a Range value to [start, stop) within `size` bytes; None means the whole file.

    Other units, several ranges and malformed values mean the whole file. Raises BadRange when the
    range has no byte of the file.
    """
    match = _RANGE.fullmatch(value) if value is not None else None
    if match is None:
        return None
    first, last = match[1], match[2]
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    elif last:
        start, stop = max(0, size - int(last)), size
    else:
        return None
    if start >= stop:
        raise BadRange(f"the file has {size} bytes; the range covers none of them")
    return start, stop


def content_type(name: bytes) -> str:
    """Return the media type for a file name; text types are declared as UTF-8."""
    guessed, coding = _TYPES.guess_type(name.decode("utf-8", "replace"), strict=False)
    if coding is not None:
        return _CODED.get(coding, _UNKNOWN)
    if guessed is None:
        return _UNKNOWN
    if guessed.startswith("text/") or guessed in _TEXT_LIKE:
        return f"{guessed}; charset=utf-8"
    return guessed


def attachment(name: bytes) -> bytes:
    """Return a Content-Disposition value that tells a browser to save the file as `name`."""
    return b"attachment; filename*=UTF-8''" + quote(name, safe="").encode()


def refuse_duplicates(lines: HeaderLines, *names: bytes) -> None:
    """Raise BadRequest if one of the headers `names` is present more than once."""
    for name in names:
        if sum(1 for key, _ in lines if key == name) > 1:
            raise BadRequest(f"the request has {name.decode().title()} twice; send it once")
