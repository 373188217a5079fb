"""What targets of user `jump` lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.jump import MAX_TARGETS, JumpTargets

if TYPE_CHECKING:
    from boxd.ssh.connection.router import BoxRoute


@pytest.fixture
def jumps() -> JumpTargets[BoxRoute]:
    return JumpTargets(frozenset({"large"}), lambda to: to)


def test_one_text_leads_to_one_target(jumps: JumpTargets[BoxRoute]) -> None:
    fresh = jumps.target("web+")
    assert jumps.target("web+") is fresh
    assert fresh.creates_new_box
    assert jumps.target("web") is not fresh
    assert not jumps.target("web").creates_new_box


def test_one_pair_of_brackets_is_taken_off(jumps: JumpTargets[BoxRoute]) -> None:
    assert jumps.target("[ws1/web:img:large^1h+5m]").target == "ws1/web:img:large^1h+5m"
    with pytest.raises(asyncssh.ChannelOpenError):
        jumps.target("[[web]]")


def test_what_is_no_spec_is_refused_and_can_be_shown(jumps: JumpTargets[BoxRoute]) -> None:
    for text in ("", "[]", "cli", "a\x1bb", "a\u202eb", "x" * 513):
        with pytest.raises(asyncssh.ChannelOpenError) as refused:
            jumps.target(text)
        assert refused.value.reason.isprintable()


def test_what_is_remembered_is_bounded(jumps: JumpTargets[BoxRoute]) -> None:
    first = jumps.target("first")
    for number in range(10 * MAX_TARGETS):
        jumps.target(f"web{number}")
    assert len(jumps._targets) == MAX_TARGETS
    assert jumps.target("first") is not first
