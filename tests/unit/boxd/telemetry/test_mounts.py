"""Sums over mounts: totals only grow, and a report counts as far as it is plausible."""

from __future__ import annotations

from boxd.telemetry.mounts import MountFigures

Report = dict[str, object]


class Mounts:
    """Mounts with given reports."""

    def __init__(self, **reports: Report) -> None:
        self.reports: dict[str, Report] = reports

    async def present(self) -> list[str]:
        return list(self.reports)

    async def health(self, volume_id: str) -> Report:
        return self.reports[volume_id]


def report(hits: int, pending: int = 0) -> Report:
    """Return the report of a healthy mount."""
    return {"health": "ok", "pending_bytes": pending, "statistics": {"cache_hits_total": hits}}


def values(figures: MountFigures) -> dict[str, float]:
    """Return the readings by name."""
    return {reading.metric.name: reading.value for reading in figures.readings()}


async def test_totals_grow_by_what_each_mount_adds() -> None:
    mounts = Mounts(a=report(100))
    figures = MountFigures(mounts)
    await figures.sample()
    assert values(figures)["boxd_drive_cache_hits_total"] == 0  # it ran before
    mounts.reports = {"a": report(105), "b": report(7)}
    await figures.sample()
    assert values(figures)["boxd_drive_cache_hits_total"] == 12
    mounts.reports = {"b": report(2)}  # "a" has ended, and "b" was started again
    await figures.sample()
    assert values(figures)["boxd_drive_cache_hits_total"] == 14


async def test_a_mount_that_is_silent_for_a_while_counts_once() -> None:
    mounts = Mounts()
    figures = MountFigures(mounts)
    await figures.sample()
    silent: Report = {"health": "the mount process does not answer"}
    for answer in (report(5), silent, report(6)):
        mounts.reports = {"a": answer}
        await figures.sample()
    assert values(figures)["boxd_drive_cache_hits_total"] == 6


async def test_gauges_are_sums_and_sick_mounts_are_counted() -> None:
    figures = MountFigures(Mounts(a=report(0, 10), b=report(0, 5), c={"health": "no answer"}))
    await figures.sample()
    seen = values(figures)
    assert seen["boxd_drive_mounts"] == 3
    assert seen["boxd_drive_mounts_failing"] == 1
    assert seen["boxd_drive_unwritten_bytes"] == 15


async def test_implausible_numbers_are_ignored() -> None:
    hostile: Report = {
        "health": "ok",
        "pending_bytes": -1,
        "open_files": "7",
        "memory_bytes": 1 << 80,
        "leases": None,
        "statistics": {"cache_hits_total": float("nan"), "queued_uploads": [1]},
    }
    figures = MountFigures(Mounts(a=hostile, b={"health": "ok", "statistics": 3}))
    await figures.sample()
    await figures.sample()
    seen = values(figures)
    assert seen.pop("boxd_drive_mounts") == 2
    assert set(seen.values()) == {0}
