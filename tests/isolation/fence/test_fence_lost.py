"""The fence is removed behind the service's back: boxes are closed at once, and open when it is
loaded again. In a network namespace of the test's own: the host's tables are not touched."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ALONE = 'mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /run; mkdir /run/netns; exec "$@"'
ALLOWED = ["box to internet", "listed box to internet"]


def test_without_the_fence_nothing_passes_until_it_is_loaded_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"),
            *("sh", "-euc", ALONE, "sh"),
            *(sys.executable, "-m", "tests.isolation.fence.fence_lost_checks", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name in found if "nobody looks" in name} == {
        "flush ruleset, nobody looks",
        "delete table inet TABLE, nobody looks",
        "flush table inet TABLE, nobody looks",
    }
    closed = {name: ways for name, ways in found.items() if "nobody looks" in name}
    assert not any(closed.values()), closed
    assert found["rule was lost, flush ruleset"] == []
    opened = [ways for name, ways in found.items() if "looked at" in name]
    assert opened == [ALLOWED] * 4
    assert found["at first"] == found["a box made after a flush"] == ALLOWED
    assert found["resolvers"] == ["192.168.9.77"]
    assert found["left"] == found["rules of devices that are gone"] == []
    assert done.stderr.count("another program removed or changed the fence") == 6
