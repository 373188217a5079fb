"""Ranges, entity tags, content types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadRange, BadRequest
from boxd.http.requests.conditions import (
    attachment,
    content_type,
    parse_range,
    parse_tags,
    range_applies,
    refuse_duplicates,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"bytes=0-0", (0, 1)),
        (b"bytes=2-5", (2, 6)),
        (b"bytes=2-", (2, 10)),
        (b"bytes=-3", (7, 10)),
        (b"bytes=-99", (0, 10)),
        (b"bytes=5-9999999999999999999", (5, 10)),
        (b"Bytes=1-1", (1, 2)),
        (None, None),
        (b"bytes=0-1,3-4", None),
        (b"bytes=5-2", None),
        (b"bytes=-", None),
        (b"bytes=a-b", None),
        (b"bytes=+1-2", None),
        (b"bytes=1-2-3", None),
        (b"items=0-1", None),
        (b"bytes=" + b"9" * 5000 + b"-", None),
        (b"bytes=0x1-0x2", None),
        (b"", None),
    ],
)
def test_range(value: bytes | None, expected: tuple[int, int] | None) -> None:
    assert parse_range(value, 10) == expected


@pytest.mark.parametrize(
    ("value", "size"),
    [(b"bytes=10-", 10), (b"bytes=10-20", 10), (b"bytes=-0", 10), (b"bytes=0-", 0)],
)
def test_range_without_a_byte(value: bytes, size: int) -> None:
    with pytest.raises(BadRange):
        parse_range(value, size)


@given(st.binary(max_size=40), st.integers(0, 1 << 62))
def test_range_is_inside_the_file_or_refused(rest: bytes, size: int) -> None:
    try:
        found = parse_range(b"bytes=" + rest, size)
    except BadRange:
        return
    assert found is None or 0 <= found[0] < found[1] <= size


def test_if_range() -> None:
    assert range_applies(None, '"1-1"')
    assert range_applies(b'"1-1"', '"1-1"')
    assert not range_applies(b'"1-2"', '"1-1"')
    assert not range_applies(b'W/"1-1"', '"1-1"')
    assert not range_applies(b"Sat, 29 Oct 1994 19:43:31 GMT", '"1-1"')


def test_tags() -> None:
    assert parse_tags(None) is None
    star = parse_tags(b" * ")
    assert star is not None
    assert star.anything
    assert star.strongly('"x"')
    some = parse_tags(b'"a", W/"b","c,d"')
    assert some is not None
    assert not some.anything
    assert some.strongly('"a"')
    assert some.strongly('"c,d"')
    assert not some.strongly('"b"')
    assert some.weakly('"b"')
    assert not some.weakly('"e"')


@pytest.mark.parametrize(
    "value", [b"", b"a", b'"a', b'"a" "b"', b"w/'a'", b",".join(b'"%d"' % n for n in range(101))]
)
def test_malformed_tags(value: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_tags(value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"a.txt", "text/plain; charset=utf-8"),
        (b"a.html", "text/html; charset=utf-8"),
        (b"a.json", "application/json; charset=utf-8"),
        (b"a.png", "image/png"),
        (b"a.tar.gz", "application/gzip"),
        (b"a.txt.unknown", "application/octet-stream"),
        (b"noext", "application/octet-stream"),
        (b"\xff.txt", "text/plain; charset=utf-8"),
        (b"", "application/octet-stream"),
    ],
)
def test_content_type(name: bytes, expected: str) -> None:
    assert content_type(name) == expected


def test_attachment_escapes_the_name() -> None:
    assert attachment(b'a"b\r\n\xff.txt') == b"attachment; filename*=UTF-8''a%22b%0D%0A%FF.txt"


def test_doubled_lines_are_refused() -> None:
    refuse_duplicates([(b"range", b"x")], b"range")
    with pytest.raises(BadRequest, match="Range"):
        refuse_duplicates([(b"range", b"x"), (b"range", b"x")], b"range")
