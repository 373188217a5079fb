"""Who asks, for which host, by which scheme: what proxies say counts from trusted ones alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from boxd.http.requests.forwarded import Forwarded, Proxies, asked_host, by_proxy, of_proxy

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

TRUSTED = "127.0.0.1,10.0.0.0/8"


async def seen(peer: str, **headers: str) -> Scope:
    """What the application sees of a request."""
    found: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        found.append(scope)

    async def receive() -> Message:
        raise AssertionError

    async def send(_message: Message) -> None:
        raise AssertionError

    lines = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "headers": lines}
    await Forwarded(app, TRUSTED)(scope | {"client": (peer, 4711)}, receive, send)
    return found[0]


async def test_a_proxy_tells_who_asks_for_what_by_which_scheme() -> None:
    scope = await seen(
        "127.0.0.1",
        x_forwarded_for="192.0.2.7",
        x_forwarded_proto="https",
        x_forwarded_host="web-80.preview.test",
        host="127.0.0.1:8080",
    )
    assert (scope["client"][0], scope["scheme"]) == ("192.0.2.7", "https")
    assert asked_host(scope) == "web-80.preview.test"
    assert by_proxy(scope)
    assert not of_proxy(scope)


async def test_what_strangers_say_does_not_count() -> None:
    scope = await seen(
        "192.0.2.7",
        x_forwarded_for="127.0.0.1",
        x_forwarded_proto="https",
        x_forwarded_host="web-80.preview.test",
        host="api.test",
    )
    assert (scope["client"][0], scope["scheme"]) == ("192.0.2.7", "http")
    assert asked_host(scope) == "api.test"
    assert not by_proxy(scope)
    assert not of_proxy(scope)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "itself"),
    [
        ("127.0.0.1", None, True),
        ("::ffff:127.0.0.1", None, True),
        ("10.1.2.3", "10.9.9.9", True),
        ("10.1.2.3", "192.0.2.7", False),
        ("10.1.2.3", "127.0.0.1, 192.0.2.7", False),
        ("10.1.2.3", "192.0.2.7, 127.0.0.1", False),
        ("10.1.2.3", "unknown", False),
        ("192.0.2.7", None, False),
        ("::1", None, False),
        ("", None, False),
    ],
)
async def test_whether_a_proxy_asks_for_itself(
    peer: str, forwarded_for: str | None, *, itself: bool
) -> None:
    headers = {} if forwarded_for is None else {"x_forwarded_for": forwarded_for}
    assert of_proxy(await seen(peer, **headers)) is itself


@pytest.mark.parametrize(
    ("told", "host"),
    [("a.test, b.test", "a.test"), ("", "api.test"), (" ,a.test", "api.test")],
)
async def test_the_first_host_is_what_the_client_asked_for(told: str, host: str) -> None:
    assert asked_host(await seen("127.0.0.1", x_forwarded_host=told, host="api.test")) == host


async def test_without_a_listener_of_ours_nobody_is_trusted() -> None:
    scope: dict[str, Any] = {"type": "http", "headers": [(b"x-forwarded-host", b"a.test")]}
    assert not by_proxy(scope)
    assert not of_proxy(scope)
    assert asked_host(scope) == ""


def test_only_addresses_and_networks_are_proxies() -> None:
    with pytest.raises(ValueError, match=r"\*"):
        Proxies("*")
