"""Small allowances whose use a test can inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.limits.budgets import output as output_budget

if TYPE_CHECKING:
    import pytest


def small_allowances(monkeypatch: pytest.MonkeyPatch, size: int) -> list[output_budget.Allowance]:
    """Give owners allowances of `size` bytes. The list receives each new allowance."""
    made: list[output_budget.Allowance] = []

    class Small(output_budget.Allowance):
        def __init__(self) -> None:
            super().__init__(size)
            made.append(self)

    monkeypatch.setattr(output_budget, "Allowance", Small)
    return made
