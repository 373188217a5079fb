"""What usernames ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.secret import Secret
from boxd.ssh.connection.router import (
    AdminRoute,
    BoxRoute,
    InvalidRoute,
    JumpRoute,
    Route,
    ShareRoute,
    TextRoute,
    route,
)

FLAVORS = frozenset({"small"})


@pytest.mark.parametrize(
    ("user", "what"),
    [("images", "images"), ("image", "images"), ("cli", "cli"), ("CLI", "cli"), ("Help", "help")],
)
def test_text(user: str, what: str) -> None:
    to = route(user, FLAVORS)
    assert isinstance(to, TextRoute)
    assert to.topic == what


@pytest.mark.parametrize(
    ("user", "once"),
    [("web", False), ("ws/web:img:small^1h", False), ("web+", True), ("_", True), ("_:img", True)],
)
def test_specs(user: str, once: bool) -> None:
    to = route(user, FLAVORS)
    assert isinstance(to, BoxRoute)
    assert (to.target, to.kind, to.creates_new_box) == (user, "spec", once)


@pytest.mark.parametrize("reference", ["web", "ws/web", "beef", "0123456789abcdef" * 2])
def test_references_never_create(reference: str) -> None:
    to = route(f"Session-{reference}", FLAVORS)
    assert to == BoxRoute(reference, None)
    assert isinstance(to, BoxRoute)
    assert (to.kind, to.creates_new_box) == ("reference", False)


@pytest.mark.parametrize(
    ("user", "to"),
    [
        ("sudo", AdminRoute()),
        ("JUMP", JumpRoute()),
        ("svcs_" + "A" * 32, ShareRoute(Secret("svcs_" + "a" * 32))),
        ("svcs_", ShareRoute(Secret("svcs_"))),
        ("svcs_no/token:at^all", ShareRoute(Secret("svcs_no/token:at^all"))),
    ],
)
def test_users_of_other_kinds(user: str, to: Route) -> None:
    assert route(user, FLAVORS) == to
    assert "aaaa" not in repr(route(user, FLAVORS))


@pytest.mark.parametrize("user", ["", "session-", "session-a b", "we_b", "web:", "session"])
def test_the_rest(user: str) -> None:
    to = route(user, FLAVORS)
    if user == "session":
        assert isinstance(to, BoxRoute)
    else:
        assert isinstance(to, InvalidRoute)
        assert isinstance(to.error, BadName)


@given(st.text(max_size=80))
def test_any_username_has_a_route(user: str) -> None:
    assert isinstance(route(user, FLAVORS), Route)
