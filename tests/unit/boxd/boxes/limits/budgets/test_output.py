"""What commands of one owner keep together is bounded; a later one gets something, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.limits.budgets import output as output_budget
from boxd.boxes.limits.budgets.output import Allowance, Allowances, Room

KIB = 1024


def test_a_stream_holds_as_much_as_is_left() -> None:
    budget = Allowance(64 * KIB)
    with Room(budget) as first, Room(budget) as second:
        assert first.part().grow(1000 * KIB) == output_budget.ALWAYS + 32 * KIB
        late = second.part()
        assert late.grow(10 * KIB) == 10 * KIB
        assert late.grow(1000 * KIB) == output_budget.ALWAYS + 16 * KIB - 10 * KIB
        assert late.grow(1) == 0
        assert budget.taken == 48 * KIB
    assert budget.taken == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200 * KIB)), max_size=60))
def test_no_order_of_asking_takes_more_than_there_is(asked: list[tuple[int, int]]) -> None:
    budget = Allowance(256 * KIB)
    with Room(budget) as room:
        parts = [room.part() for _ in range(10)]
        held = [0] * 10
        for number, size in asked:
            held[number] += parts[number].grow(size)
            assert budget.taken <= budget.size
            assert sum(held) <= budget.size + 10 * output_budget.ALWAYS
            assert budget.taken == sum(part.taken for part in parts)
        assert all(
            part.grow(1) or size >= output_budget.ALWAYS
            for part, size in zip(parts, held, strict=True)
        )
    assert budget.taken == 0


def test_each_owner_has_one_over_all_calls() -> None:
    known = Allowances()
    with known.room("a") as one, known.room("a") as two, known.room("b") as other:
        one.part().grow(output_budget.BYTES)
        less = two.part().grow(output_budget.BYTES)
        assert other.part().grow(output_budget.BYTES) > less
    with known.room("a") as again:
        assert again.part().grow(output_budget.BYTES) > less
