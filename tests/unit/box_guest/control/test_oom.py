"""What the agent reads of its box's cgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.control import oom

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", oom.FILES)
def test_both_kinds_of_cgroups(tmp_path: Path, name: str) -> None:
    assert oom.kills(tmp_path) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert oom.kills(tmp_path) is None
    (tmp_path / name).write_text("oom_kill_disable 0\noom_kill 7\n")
    assert oom.kills(tmp_path) == 7
