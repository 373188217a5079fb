"""The running tasks of an owner are counted."""

from __future__ import annotations

from boxd.boxes.limits.budgets.concurrency import ConcurrencyCount


def test_what_is_under_way_is_counted_by_owner() -> None:
    counted, seen = ConcurrencyCount(), list[int]()
    with counted.one_more("a", seen.append), counted.one_more("a", seen.append):
        with counted.one_more("b", seen.append):
            pass
        with counted.one_more("a", seen.append):
            pass
    with counted.one_more("a", seen.append):
        pass
    assert seen == [0, 1, 0, 2, 0]
    assert vars(counted)["_running"] == {}
