"""VI-8: a file that was changed over HTTP while a box slept is seen after it wakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

READER = """
cd /wrk
printf old >kept; printf old >grown; printf old >replaced; printf old >gone
cat >/root/reader.py <<'END'
import json, os, time
files = {name: os.open("/wrk/" + name, os.O_RDWR) for name in ("kept", "grown", "replaced")}
while True:
    seen = {}
    for name, descriptor in files.items():
        seen[name] = [os.pread(descriptor, 99, 0).decode()]
        with open("/wrk/" + name) as file:
            seen[name].append(file.read())
    seen["names"] = sorted(os.listdir("/wrk"))
    seen["written"] = os.pwrite(files["kept"], b"K", 0)
    seen["pid"] = os.getpid()
    with open("/root/seen.new", "w") as file:
        json.dump(seen, file)
    os.rename("/root/seen.new", "/root/seen")
    time.sleep(0.05)
END
rm -f /root/seen
nohup setsid python3 /root/reader.py >/root/said 2>&1 </dev/null &
while ! test -s /root/seen; do sleep 0.05; done
"""
"""A program with files of the drive open, which tells what it reads in them, and by their names."""
AGAIN = """
for time in first second; do
  while ! test -s /root/seen; do sleep 0.05; done
  test $time = second || rm /root/seen
done
"""
"""Waits for what it has read since now: what it tells first it may have read before."""


def change(user: User, key: str, name: str, data: str | None) -> None:
    """Changes a file of the drive over HTTP; None: removes it."""
    method, body = ("DELETE", None) if data is None else ("PUT", data.encode())
    status, answer = user.http(method, key, f"/v1/wrk/{name}", body, timeout=60)
    assert status < 300, answer


@pytest.mark.figure("VI-8")
@pytest.mark.promise("V1")
@pytest.mark.timeout(600)
def test_changes_over_http_are_seen_after_the_wake(
    daemon: Daemon, tmp_path: Path, figures: Figures
) -> None:
    user = User(daemon, tmp_path)
    key = user.ssh("cli", "apikeys create laptop")
    for number in figures(ci=2, long=200):
        user.ssh("dev", READER)
        pid = user.ssh("dev", "pgrep -f reader.py")
        assert "suspended" in user.ssh("cli", "suspend dev")
        change(user, key, "grown", f"longer than it was before {number}")
        change(user, key, "replaced", f"{number}")
        change(user, key, "new", "new")
        change(user, key, "gone", None)
        change(user, key, "kept", "Kept")
        # What is read first is read at once.
        assert user.ssh("dev", "cat /wrk/replaced; rm -f /root/seen") == f"{number}"
        user.ssh("dev", AGAIN)
        seen = user.ssh("dev", "cat /root/seen")
        assert "started from" not in str(user.boxes()["dev"]["detail"])
        assert f'"pid": {pid}' in seen
        assert f'longer than it was before {number}"]' in seen
        assert '"written": 1' in seen
        assert '"names": ["grown", "kept", "new", "replaced"]' in seen
        user.ssh("dev", f"kill {pid}")
        until(lambda: user.boxes()["dev"]["attached"] == 0)
