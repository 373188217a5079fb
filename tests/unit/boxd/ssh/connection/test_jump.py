"""What targets of user `jump` lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.jump import MOST, Jumps

if TYPE_CHECKING:
    from boxd.ssh.connection.router import ToBox


@pytest.fixture
def jumps() -> Jumps[ToBox]:
    return Jumps(frozenset({"large"}), lambda to: to)


def test_one_text_leads_to_one_target(jumps: Jumps[ToBox]) -> None:
    fresh = jumps.target("web+")
    assert jumps.target("web+") is fresh
    assert fresh.once
    assert jumps.target("web") is not fresh
    assert not jumps.target("web").once


def test_one_pair_of_brackets_is_taken_off(jumps: Jumps[ToBox]) -> None:
    assert jumps.target("[ws1/web:img:large^1h+5m]").target == "ws1/web:img:large^1h+5m"
    with pytest.raises(asyncssh.ChannelOpenError):
        jumps.target("[[web]]")


def test_what_is_no_spec_is_refused_and_can_be_shown(jumps: Jumps[ToBox]) -> None:
    for text in ("", "[]", "cli", "a\x1bb", "a\u202eb", "x" * 513):
        with pytest.raises(asyncssh.ChannelOpenError) as refused:
            jumps.target(text)
        assert refused.value.reason.isprintable()


def test_what_is_remembered_is_bounded(jumps: Jumps[ToBox]) -> None:
    first = jumps.target("first")
    for number in range(10 * MOST):
        jumps.target(f"web{number}")
    assert len(jumps._known) == MOST
    assert jumps.target("first") is not first
