"""Computes figures from repetitions: medians, ratios with their spread, and a table."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from wrkfs.bench.workloads import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wrkfs.bench.measure import Measurements, Series

FAILS = "fails"


def summary(
    measurements: Measurements,
    subject: str,
    reference: str | None,
    goals: Mapping[str, float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each workload the targets' medians, and the subject's ratio to the reference.

    A median is "fails" if a repetition failed. The ratio is the median of the ratios of the
    repetitions, because measurements of one repetition are close in time. It is None if a target
    failed.
    """
    workloads = {}
    for name, by_target in measurements.items():
        figures: dict[str, Any] = {"unit": BY_NAME[name].unit}
        figures |= {target: _figure(series) for target, series in by_target.items()}
        figures["spread"] = {
            target: [min(series.rates), max(series.rates)]
            for target, series in by_target.items()
            if series.rates
        }
        errors = {target: series.errors[0] for target, series in by_target.items() if series.errors}
        if errors:
            figures["errors"] = errors
        if reference is not None:
            ratios = _ratios(by_target.get(subject), by_target.get(reference))
            figures["ratio"] = statistics.median(ratios) if ratios else None
            if ratios:
                figures |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
            if goals is not None and name in goals:
                figures["goal"] = goals[name]
        workloads[name] = figures
    return workloads


def table(
    workloads: Mapping[str, Mapping[str, Any]], targets: Sequence[str], *, ratio: bool
) -> list[tuple[str, ...]]:
    """Return a header row and one row for each workload, as text."""
    goals = any("goal" in figures for figures in workloads.values())
    head = ["work", "unit", *targets]
    head += ["ratio", "from - to"] if ratio else []
    rows = [(*head, "goal") if goals else tuple(head)]
    for name, figures in workloads.items():
        row = [
            name,
            str(figures["unit"]),
            *(format_figure(figures.get(target)) for target in targets),
        ]
        if ratio:
            row.append(format_figure(figures["ratio"]))
            has_ratio = "ratio_min" in figures
            row.append(
                f"{figures['ratio_min']:.2f} - {figures['ratio_max']:.2f}" if has_ratio else "-"
            )
        if goals:
            row.append(f"{figures['goal']:.3g}" if "goal" in figures else "-")
        rows.append(tuple(row))
    return rows


def format_figure(figure: object) -> str:
    """Format one figure for a table."""
    if isinstance(figure, float):
        return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"
    return "-" if figure is None else str(figure)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the table as lines for a terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _figure(series: Series) -> float | str:
    return FAILS if series.errors or not series.rates else statistics.median(series.rates)


def _ratios(subject: Series | None, reference: Series | None) -> list[float]:
    if subject is None or reference is None or subject.errors or reference.errors:
        return []
    return [a / b for a, b in zip(subject.rates, reference.rates, strict=True)]
