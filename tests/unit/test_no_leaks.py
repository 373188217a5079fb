"""What the plugin sees of a machine on which others make and remove things meanwhile."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.plugins import no_leaks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_cgroups_of_boxes(tmp_path: Path) -> None:
    for place in ("cpu/boxd-a/one", "boxd-a/two", "cpu/other/three"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "boxd-a/tasks").touch()
    found = no_leaks._cgroups(tmp_path)
    assert sorted(found) == [f"{tmp_path}/boxd-a/two", f"{tmp_path}/cpu/boxd-a/one"]


def test_a_cgroup_that_goes_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu/boxd-a/one").mkdir(parents=True)
    names = no_leaks._names

    def go(folder: Path) -> list[str]:
        found = names(folder)
        if folder.name == "cpu":
            shutil.rmtree(folder / "boxd-a")
        return found

    monkeypatch.setattr(no_leaks, "_names", go)
    assert no_leaks._cgroups(tmp_path) == []
