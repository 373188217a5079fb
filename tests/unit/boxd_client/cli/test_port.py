"""Heads of requests and answers that `box port` forwards."""

from __future__ import annotations

import pytest

from boxd_client.cli.port import Forwarder
from boxd_client.config import Settings

FORWARDER = Forwarder(Settings("https://boxes.example.com/api", "svc_key"), "ws/web", 3000, 4000)
PREFIX = b"/api/v1/boxes/ws%2Fweb/proxy/3000"


def test_a_request() -> None:
    head = (
        b"GET /a?b=c HTTP/1.1\r\nHost: localhost:4000\r\nAuthorization: Basic x\r\n"
        b"Connection: keep-alive\r\nCookie: a=b\r\n\r\n"
    )
    expected = (
        b"GET " + PREFIX + b"/a?b=c HTTP/1.1\r\nCookie: a=b\r\nHost: boxes.example.com\r\n"
        b"Connection: close\r\nAuthorization: Bearer svc_key\r\n\r\n"
    )
    assert FORWARDER.request_head(head) == expected


def test_a_websocket() -> None:
    head = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:4000\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    )
    request = FORWARDER.request_head(head)
    assert request is not None
    assert b"\r\nConnection: Upgrade\r\n" in request
    assert b"\r\nUpgrade: websocket\r\n" in request


def test_a_path_below_the_prefix_stays() -> None:
    head = b"GET " + PREFIX + b"/login HTTP/1.1\r\nHost: localhost:4000\r\n\r\n"
    request = FORWARDER.request_head(head)
    assert request is not None
    assert request.startswith(b"GET " + PREFIX + b"/login HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost:4001\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost:4000\r\nHost: evil\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: localhost:4000\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: localhost:4000\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_requests_that_are_refused(head: bytes) -> None:
    assert FORWARDER.request_head(head) is None


def test_an_answer() -> None:
    head = (
        b"HTTP/1.1 302 Found\r\nLocation: " + PREFIX + b"/login\r\n"
        b"Set-Cookie: a=b; Path=" + PREFIX + b"/; HttpOnly\r\nX: " + PREFIX + b"\r\n\r\n"
    )
    expected = (
        b"HTTP/1.1 302 Found\r\nLocation: /login\r\nSet-Cookie: a=b; Path=/; HttpOnly\r\nX: "
        + PREFIX
        + b"\r\n\r\n"
    )
    assert FORWARDER.answer_head(head) == expected
