"""The routes of user names."""

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
    ("user", "topic"),
    [("images", "images"), ("image", "images"), ("cli", "cli"), ("CLI", "cli"), ("Help", "help")],
)
def test_text_routes(user: str, topic: str) -> None:
    result = route(user, FLAVORS)
    assert isinstance(result, TextRoute)
    assert result.topic == topic


@pytest.mark.parametrize(
    ("user", "creates_new_box"),
    [("web", False), ("ws/web:img:small^1h", False), ("web+", True), ("_", True), ("_:img", True)],
)
def test_box_specs(user: str, creates_new_box: bool) -> None:
    result = route(user, FLAVORS)
    assert isinstance(result, BoxRoute)
    assert (result.target, result.kind, result.creates_new_box) == (user, "spec", creates_new_box)


@pytest.mark.parametrize("reference", ["web", "ws/web", "beef", "0123456789abcdef" * 2])
def test_references_never_create_a_box(reference: str) -> None:
    result = route(f"Session-{reference}", FLAVORS)
    assert result == BoxRoute(reference, None)
    assert isinstance(result, BoxRoute)
    assert (result.kind, result.creates_new_box) == ("reference", False)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("sudo", AdminRoute()),
        ("JUMP", JumpRoute()),
        ("svcs_" + "A" * 32, ShareRoute(Secret("svcs_" + "a" * 32))),
        ("svcs_", ShareRoute(Secret("svcs_"))),
        ("svcs_no/token:at^all", ShareRoute(Secret("svcs_no/token:at^all"))),
    ],
)
def test_other_routes(user: str, expected: Route) -> None:
    assert route(user, FLAVORS) == expected
    assert "aaaa" not in repr(route(user, FLAVORS))


@pytest.mark.parametrize("user", ["", "session-", "session-a b", "we_b", "web:", "session"])
def test_invalid_names(user: str) -> None:
    result = route(user, FLAVORS)
    if user == "session":
        assert isinstance(result, BoxRoute)
    else:
        assert isinstance(result, InvalidRoute)
        assert isinstance(result.error, BadName)


@given(st.text(max_size=80))
def test_any_username_has_a_route(user: str) -> None:
    assert isinstance(route(user, FLAVORS), Route)
