"""Counting of holds."""

from __future__ import annotations

from boxd.boxes.attachments import Attachments, Hold


def test_holds_are_counted_per_box_and_reason() -> None:
    attachments = Attachments()
    holds = [Hold("a", "session", None), Hold("a", "exec", None), Hold("b", "exec", None)]
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


def test_only_holds_of_the_key_are_ended() -> None:
    attachments, ended = Attachments(), list[str]()
    for name, key_id in (("one", "k1"), ("two", "k2"), ("three", None)):
        hold = Hold("a", "exec", key_id)
        hold.end = lambda name=name: ended.append(name)
        attachments.expect(hold)
    assert attachments.end_key("k1") == 1
    assert ended == ["one"]


def test_what_is_over_is_not_ended() -> None:
    attachments = Attachments()
    hold = Hold("", "exec", "k1", end=lambda: None)
    attachments.expect(hold)
    attachments.finish(hold)
    assert attachments.end_key("k1") == 0
