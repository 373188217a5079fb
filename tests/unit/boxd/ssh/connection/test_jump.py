"""The targets of user `jump`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.jump import MAX_TARGETS, JumpTargets

if TYPE_CHECKING:
    from boxd.ssh.connection.router import BoxRoute


@pytest.fixture
def targets() -> JumpTargets[BoxRoute]:
    return JumpTargets(frozenset({"large"}), lambda route: route)


def test_the_same_text_leads_to_the_same_target(targets: JumpTargets[BoxRoute]) -> None:
    fresh = targets.target("web+")
    assert targets.target("web+") is fresh
    assert fresh.creates_new_box
    assert targets.target("web") is not fresh
    assert not targets.target("web").creates_new_box


def test_one_pair_of_brackets_is_removed(targets: JumpTargets[BoxRoute]) -> None:
    assert targets.target("[ws1/web:img:large^1h+5m]").target == "ws1/web:img:large^1h+5m"
    with pytest.raises(asyncssh.ChannelOpenError):
        targets.target("[[web]]")


def test_invalid_specs_are_rejected_with_a_printable_reason(targets: JumpTargets[BoxRoute]) -> None:
    for text in ("", "[]", "cli", "a\x1bb", "a\u202eb", "x" * 513):
        with pytest.raises(asyncssh.ChannelOpenError) as caught:
            targets.target(text)
        assert caught.value.reason.isprintable()


def test_the_number_of_targets_is_bounded(targets: JumpTargets[BoxRoute]) -> None:
    first = targets.target("first")
    for number in range(10 * MAX_TARGETS):
        targets.target(f"web{number}")
    assert len(targets._targets) == MAX_TARGETS
    assert targets.target("first") is not first
