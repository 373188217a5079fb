"""Background upkeep continues after any error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.wait import until
from wrkfs.upkeep import background

if TYPE_CHECKING:
    from datetime import timedelta

    import pytest

    from tests.plugins.strict_logs import AssertLogs
    from tests.unit.wrkfs.drive import Drive


async def test_a_bug_in_a_round_is_told_and_the_next_comes(
    drive: Drive, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = await drive.mount()
    rounds = 0

    async def broken(period: timedelta) -> bool:
        nonlocal rounds
        rounds += 1
        raise KeyError(period)

    monkeypatch.setattr(fs.stores.upkeep, "claim_upkeep", broken)
    with assert_logs("upkeep"):
        background.start(fs, background.Pace(interval=0.001))
        await until(lambda: rounds > 2)
        await fs.close()
