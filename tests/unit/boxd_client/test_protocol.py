"""Requests, retries and errors, without a network."""

from __future__ import annotations

import pytest

from boxd_client import InvalidRequest, RetryPolicy
from boxd_client.pieces import PIECE, read_pieces
from boxd_client.protocol import (
    Request,
    Retry,
    file_path,
    json_request,
    retry_after,
    segment,
    with_key,
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a b", "a%20b"),
        ("/etc/hosts", "etc/hosts"),
        ("ü?#%", "%C3%BC%3F%23%25"),
        ("\udcff", "%FF"),
        ("", ""),
    ],
)
def test_paths_of_files(text: str, path: str) -> None:
    assert file_path(text) == path


@pytest.mark.parametrize("text", ["..", "a/../b", "./a", "a\0"])
def test_paths_that_a_url_cannot_have(text: str) -> None:
    with pytest.raises(InvalidRequest):
        file_path(text)


def test_segments() -> None:
    assert segment("ws/web") == "ws%2Fweb"
    for text in ("", ".", ".."):
        with pytest.raises(InvalidRequest):
            segment(text)


def test_parameters() -> None:
    request = Request("GET", "/x", {"a": None, "b": False, "c": True, "d": "e f", "g": 5})
    assert request.target == "/x?c=true&d=e+f&g=5"


def test_only_creations_have_a_key_of_their_own() -> None:
    body = {"name": "x", "none": None}
    creation = with_key(json_request("POST", "/x", body, retry=Retry.KEYED))
    assert creation.content == b'{"name": "x"}'
    assert len(creation.headers["Idempotency-Key"]) == 32
    assert with_key(creation) == creation
    assert "Idempotency-Key" not in with_key(Request("GET", "/x", retry=Retry.SAFE)).headers


def test_delays_grow_and_end() -> None:
    policy = RetryPolicy(attempts=4, first=1.0, longest=3.0)
    delays = [policy.delay(attempt) for attempt in (1, 2, 3, 4)]
    limits = [(0.5, 1.0), (1.0, 2.0), (1.5, 3.0)]
    for delay, (low, high) in zip(delays, limits, strict=False):
        assert delay is not None
        assert low <= delay <= high
    assert delays[3] is None
    assert (policy.delay(1, 2.5), policy.delay(1, 3.5), policy.delay(4, 0.0)) == (2.5, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-1", None),
        ("soon", None),
        ("٣", None),
        ("9" * 400, None),
        ("Fri, 02 Jan 1970 00:00:00 GMT", 0.0),
        ("", None),
    ],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": text}) == seconds


def test_content_is_split() -> None:
    data = bytes(PIECE) + b"x"
    assert [len(piece) for piece in read_pieces(data)] == [PIECE, 1]
    assert list(read_pieces("é")) == ["é".encode()]
    assert list(read_pieces([b"a", b"b"])) == [b"a", b"b"]
