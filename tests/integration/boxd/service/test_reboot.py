"""The host goes down under the whole service, and comes up with nothing but its disks.

As near to it as a test can come: every process of the installation is killed at once, box, mount
and database included; mounts, namespaces, links, rules, cgroups and all below /run are gone; the
kernel tells another start, and the clock that counts since then begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.boxes.lifecycle.adoption import STARTED_AGAIN
from tests.harness.mounts.drive import until
from tests.harness.service.counter import COUNTER, counter
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.mortal_daemon import Mortal

pytestmark = [pytest.mark.promise("L2"), pytest.mark.timeout(300)]


def test_boxes_outlive_their_host(mortal: Mortal, tmp_path: Path) -> None:
    user = User(mortal.daemon, tmp_path)
    for name in ("sleeper", "runner"):
        user.ssh(name, COUNTER + f"echo {name} >/root/name; echo {name} >/wrk/{name}; sync")
    who, ticks = counter(user, "sleeper")
    ran, _ = counter(user, "runner")
    user.ssh("cli", "snapshot create runner good")
    assert "suspended" in user.ssh("cli", "suspend sleeper")
    deadlines = {name: box["deadline"] for name, box in user.boxes().items()}
    mortal.reboot()
    mortal.daemon.start()
    until(lambda: user.boxes()["runner"]["state"] == "running", 60)
    boxes = user.boxes()
    assert {name: box["deadline"] for name, box in boxes.items()} == deadlines
    assert boxes["runner"]["detail"] == STARTED_AGAIN
    assert (boxes["sleeper"]["state"], boxes["sleeper"]["memory"]) == ("suspended", True)
    assert user.ssh("runner", "cat /root/name /wrk/runner /wrk/sleeper") == (
        "runner\nrunner\nsleeper"
    )
    assert "sh /root/count.sh" not in mortal.pids(str(boxes["runner"]["id"])).values()
    now, later = counter(user, "sleeper")
    assert now == who
    assert later >= ticks
    until(lambda: counter(user, "sleeper")[1] > later)
    assert user.boxes()["sleeper"]["detail"] == ""
    # The memory of a box that ran is in its snapshot, and sleeping works as before.
    user.ssh("cli", "snapshot fork runner@good kid")
    assert counter(user, "kid")[0] == ran
    until(lambda: user.boxes()["sleeper"]["attached"] == 0)
    assert "suspended" in user.ssh("cli", "suspend sleeper")
    assert counter(user, "sleeper")[0] == who
