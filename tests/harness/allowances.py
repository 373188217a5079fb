"""Allowances that a test looks at, and that are small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes import allowance

if TYPE_CHECKING:
    import pytest


def small_allowances(monkeypatch: pytest.MonkeyPatch, size: int) -> list[allowance.Allowance]:
    """Has owners get allowances of `size` bytes; those that are made come into the list."""
    made: list[allowance.Allowance] = []

    class Small(allowance.Allowance):
        def __init__(self) -> None:
            super().__init__(size)
            made.append(self)

    monkeypatch.setattr(allowance, "Allowance", Small)
    return made
