"""Counting of holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.boxes.presence import attachments as attachments_module
from boxd.boxes.presence.attachments import Attachments, Hold
from boxd.boxes.state.feed import Feed
from boxd.errors import Forbidden, InvalidKey

if TYPE_CHECKING:
    from boxd.errors import BoxdError

ALICE, BOB = "SHA256:alice", "SHA256:bob"


def test_holds_are_counted_per_box_and_reason() -> None:
    attachments = Attachments(Feed())
    places = (("a", "session"), ("a", "exec"), ("b", "exec"))
    holds = [Hold(ALICE, box_id, why, None) for box_id, why in places]
    for hold in holds:
        attachments.add(hold)
        attachments.add(hold)
    assert attachments.count("a") == 2
    assert attachments.why("a") == {"exec": 1, "session": 1}
    assert attachments.remove(holds[0]) == 1
    assert attachments.remove(holds[1]) == 0
    assert attachments.remove(holds[1]) == 0
    assert attachments.why("a") == {}
    assert attachments.count("b") == 1


def expected(attachments: Attachments) -> dict[str, BoxdError]:
    """Two holds of alice and one of bob; who was ended, and why, is in the result."""
    ended: dict[str, BoxdError] = {}

    def one(name: str, owner: str, box_id: str, key_id: str | None) -> None:
        hold = Hold(owner, box_id, "exec", key_id)
        hold.end = lambda why: ended.__setitem__(name, why)
        attachments.expect(hold)

    one("one", ALICE, "a", "k1")
    one("two", ALICE, "b", "k2")
    one("three", BOB, "c", None)
    return ended


def test_only_holds_of_the_key_are_ended() -> None:
    attachments = Attachments(Feed())
    ended = expected(attachments)
    assert attachments.end_key("k1", "revoked") == 1
    assert [(type(why), str(why)) for why in ended.values()] == [(InvalidKey, "revoked")]
    assert list(ended) == ["one"]


def test_a_key_that_was_ended_starts_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_module, "ENDED_KEPT", 2)
    attachments = Attachments(Feed())
    for number in range(3):
        assert attachments.end_key(f"k{number}", f"revoked {number}") == 0
    with pytest.raises(InvalidKey, match="revoked 2"):
        attachments.expect(Hold(ALICE, "", "exec", "k2"))
    for other in ("k9", None):
        attachments.expect(Hold(ALICE, "", "exec", other))
    # Only so many are remembered.
    attachments.expect(Hold(ALICE, "", "exec", "k0"))


def test_holds_of_a_box_and_of_an_owner_are_ended_with_a_text() -> None:
    attachments = Attachments(Feed())
    ended = expected(attachments)
    assert attachments.end_box("b", "sent away") == 1
    assert attachments.end_box("d", "sent away") == 0
    assert list(ended) == ["two"]
    assert attachments.end_owner(BOB, "blocked") == 1
    assert {name: str(why) for name, why in ended.items()} == {
        "two": "sent away",
        "three": "blocked",
    }
    assert all(isinstance(why, Forbidden) for why in ended.values())
    assert attachments.end_owner(ALICE, "blocked") == 2


def test_what_is_over_is_not_ended() -> None:
    attachments = Attachments(Feed())
    hold = Hold(ALICE, "a", "exec", "k1", end=lambda _why: None)
    attachments.expect(hold)
    attachments.finish(hold)
    assert attachments.end_key("k1", "") == 0
    assert attachments.end_box("a", "") == attachments.end_owner(ALICE, "") == 0
