"""Attempts to leave a box, which every backend must refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.boxes import escape_checks

if TYPE_CHECKING:
    from tests.harness.boxes.backend import BoxHost

CHECKS = Path(escape_checks.__file__)


async def check_every_escape_is_refused(box_host: BoxHost) -> None:
    """Every escape is refused."""
    assert await tried(box_host, await box_host.box()) == {}


async def tried(host: BoxHost, box: str) -> dict[str, str]:
    """Run all attempts in the box; return those that succeeded, with their results."""
    result = await host.run(box, "/usr/bin/python3", "-I", "-c", CHECKS.read_text(), stdin=b"")
    assert result.status == 0, result.err
    outcome: dict[str, str] = json.loads(result.out)
    assert outcome.keys() == escape_checks.attempts().keys()
    return {name: what for name, what in outcome.items() if not what.startswith("refused")}


async def check_ordinary_work_is_not_refused(
    box_host: BoxHost, *, but: tuple[str, ...] = ()
) -> None:
    """The filter and the capabilities permit ordinary work in a box, except for programs `but`."""
    box = await box_host.box()
    for command in (
        "touch /root/f && chown 1000:1000 /root/f && chmod 600 /root/f && rm /root/f",
        "python3 -c 'import threading,subprocess; t=threading.Thread(target=print); t.start(); "
        'subprocess.run(["true"],check=True)\'',
        "python3 -c 'import socket; s=socket.create_server((\"127.0.0.1\",80)); s.close()'",
        "python3 -c 'import os; a,b=os.openpty(); print(os.ttyname(b))'",
        "python3 -c 'import multiprocessing as m; q=m.Queue(); q.put(1); assert q.get()==1'",
        "python3 -c 'import mmap; mmap.mmap(-1,4096)'",
        "git init -q /root/r && cd /root/r && git -c user.name=a -c user.email=b commit "
        "-q --allow-empty -m x",
        "ping -c1 -W2 127.0.0.1",
        "ip addr show eth0 | grep -q 'inet '",
        "su nobody -s /bin/sh -c true",
        "mkfifo /tmp/p && rm /tmp/p",
        "chroot / true",
        "ps aux | grep -q sleep",
        "apt-config dump > /dev/null && dpkg -l > /dev/null",
        "unshare --files true 2>/dev/null || true; nice -n 5 true; timeout 5 true",
    ):
        if command.split()[0] in but:
            continue
        result = await box_host.run(box, "bash", "-c", command)
        assert result.status == 0, f"{command}: {result.out} {result.err}"
