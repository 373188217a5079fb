"""The front door outlives what strangers say who have not exchanged keys, and remembers nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz.judged import judged_door
from tests.fuzz.rounds import before_keys

if TYPE_CHECKING:
    from tests.plugins.figures import Figures


@pytest.mark.timeout(600)
@pytest.mark.figure("FZ-1")
async def test_nonsense_before_keys(figures: Figures) -> None:
    async with judged_door(before_keys) as judge:
        await judge.run(before_keys, figures(ci=7000, long=700_000))
