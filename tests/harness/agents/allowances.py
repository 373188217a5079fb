"""Allowances that a test looks at, and that are small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.limits.budgets import output as output_budget

if TYPE_CHECKING:
    import pytest


def small_allowances(monkeypatch: pytest.MonkeyPatch, size: int) -> list[output_budget.Allowance]:
    """Has owners get allowances of `size` bytes; those that are made come into the list."""
    made: list[output_budget.Allowance] = []

    class Small(output_budget.Allowance):
        def __init__(self) -> None:
            super().__init__(size)
            made.append(self)

    monkeypatch.setattr(output_budget, "Allowance", Small)
    return made
