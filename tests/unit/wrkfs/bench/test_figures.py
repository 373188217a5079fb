"""Medians, ratios with their spread, and failed workloads."""

from __future__ import annotations

import pytest

from wrkfs.bench.figures import aligned, summary, table
from wrkfs.bench.measure import Series


def test_the_ratio_is_the_median_of_the_repetitions() -> None:
    found = {"create": {"a": Series([10.0, 40.0, 30.0]), "b": Series([10.0, 20.0, 10.0])}}
    workloads = summary(found, "a", "b", {"create": 3.0})
    assert workloads["create"]["a"] == 30.0
    assert workloads["create"]["b"] == 10.0
    assert workloads["create"]["ratio"] == 2.0
    assert (workloads["create"]["ratio_min"], workloads["create"]["ratio_max"]) == (1.0, 3.0)
    assert workloads["create"]["spread"] == {"a": [10.0, 40.0], "b": [10.0, 20.0]}
    assert workloads["create"]["goal"] == 3.0


@pytest.mark.parametrize("failing", ["a", "b"])
def test_who_fails_once_has_no_figure_and_no_ratio(failing: str) -> None:
    found = {"rename": {name: Series([1.0, 2.0]) for name in ("a", "b")}}
    found["rename"][failing] = Series([1.0], ["no space"])
    workloads = summary(found, "a", "b")
    assert workloads["rename"][failing] == "fails"
    assert workloads["rename"]["ratio"] is None
    assert workloads["rename"]["errors"] == {failing: "no space"}


def test_a_table_says_what_was_not_measured() -> None:
    found = {"create": {"a": Series([1.0]), "b": Series([2.0])}, "rename": {"a": Series([2000.0])}}
    rows = table(summary(found, "a", "b"), ["a", "b"], ratio=True)
    assert rows == [
        ("work", "unit", "a", "b", "ratio", "from - to"),
        ("create", "ops/s", "1.00", "2.00", "0.50", "0.50 - 0.50"),
        ("rename", "ops/s", "2,000", "-", "-", "-"),
    ]
    assert aligned(rows)[2] == "rename  ops/s  2,000     -      -            -"


def test_one_target_alone_has_no_ratio() -> None:
    workloads = summary({"create": {"a": Series([1.0])}}, "a", None)
    assert "ratio" not in workloads["create"]
    assert table(workloads, ["a"], ratio=False)[1] == ("create", "ops/s", "1.00")
