"""Reading header lines, paths and query strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName, BadRequest
from boxd.http.requests.headers import (
    ENCODED_SLASH,
    decode_path,
    framing_problem,
    has_body,
    header,
    joined,
    media_type,
    path_text,
    query_values,
    query_workspace,
)

LINES = [(b"host", b"a"), (b"x", b"1"), (b"x", b"2")]


def test_first_line_and_joined_lines() -> None:
    assert header(LINES, b"x") == b"1"
    assert header(LINES, b"y") is None
    assert joined(LINES, b"x") == b"1, 2"
    assert joined(LINES, b"y") is None


@pytest.mark.parametrize(
    ("version", "path", "query", "lines", "word"),
    [
        ("1.1", b"x", b"", [], "target"),
        ("1.1", b"*", b"", [], "target"),
        ("1.1", b"/a\x01", b"", [], "control"),
        ("1.1", b"/a", b"b=\x7f", [], "control"),
        ("1.1", b"/", b"", [(b"a", b"")] * 101, "101"),
        ("1.1", b"/", b"", [(b"content-length", b"1"), (b"transfer-encoding", b"x")], "combined"),
        ("1.1", b"/", b"", [(b"content-length", b"1")] * 2, "twice"),
        ("1.1", b"/", b"", [(b"transfer-encoding", b"chunked")] * 2, "twice"),
        ("1.0", b"/", b"", [(b"transfer-encoding", b"chunked")], "1.0"),
        ("2.0", b"/", b"", [], "HTTP/2.0"),
        ("1.1", b"/", b"a" * 30_000, [(b"x", b"y" * 40_000)], "70002"),
    ],
)
def test_bad_framing_is_named(
    version: str, path: bytes, query: bytes, lines: list[tuple[bytes, bytes]], word: str
) -> None:
    assert word in (framing_problem(version, path, query, lines) or "")


def test_good_framing_passes() -> None:
    lines = [(b"content-length", b"3"), *[(b"a", b"")] * 99]
    assert framing_problem("1.1", b"/v1/wrk/a", b"ws=x", lines) is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], False),
        ([(b"content-length", b"0")], False),
        ([(b"content-length", b"000")], False),
        ([(b"content-length", b"10")], True),
        ([(b"transfer-encoding", b"chunked")], True),
    ],
)
def test_has_body(lines: list[tuple[bytes, bytes]], expected: bool) -> None:
    assert has_body(lines) is expected


def test_encoded_slash_does_not_separate() -> None:
    decoded = decode_path(b"/v1/boxes/ws1%2fweb")
    assert decoded.split("/") == ["", "v1", "boxes", f"ws1{ENCODED_SLASH}web"]
    assert path_text(decoded) == "/v1/boxes/ws1/web"


def test_decoding_happens_once_and_plus_stays() -> None:
    assert path_text(decode_path(b"/a%252Fb+c%2B%5E")) == "/a%2Fb+c+^"


def test_path_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        path_text(decode_path(b"/%ff"))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_path_text_reads_what_was_quoted(text: str) -> None:
    quoted = "".join(f"%{byte:02X}" for byte in text.encode()).encode()
    assert path_text(decode_path(b"/" + quoted)) == "/" + text


def test_query_values() -> None:
    query = b"ws=a&&stream=false&ws=b%26c&flag&=x"
    assert query_values(query, b"ws") == [b"a", b"b&c"]
    assert query_values(query, b"flag") == [b""]
    assert query_values(query, b"none") == []
    assert query_values(b"%77s=z", b"ws") == [b"z"]


def test_workspace_of_a_query() -> None:
    assert query_workspace(b"") is None
    assert query_workspace(b"ws=") == ""
    assert query_workspace(b"ws=one&ws=one") == "one"
    assert query_workspace(b"ws=a+b") == "a+b"
    with pytest.raises(BadName, match="more than one"):
        query_workspace(b"ws=one&ws=two")
    with pytest.raises(BadName, match="UTF-8"):
        query_workspace(b"ws=%ff")


def test_media_type() -> None:
    assert media_type(b"Text/Plain; charset=utf-8") == "text/plain"
    assert media_type(None) == ""
