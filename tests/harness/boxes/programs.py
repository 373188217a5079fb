"""Boxes in which a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.boxes.suspending import Guest, Sleepy


async def started(sleepy: Sleepy, program: str, ready: str = "test -e /root/ready") -> Guest:
    """Start a program in a new box and wait until the `ready` command succeeds."""
    guest = await sleepy.guest()
    host, box = sleepy.host, guest.box
    await host.run(box, "sh", "-c", "cat > /root/program.py", stdin=program.encode())
    command = "setsid /usr/bin/python3 /root/program.py </dev/null >/root/out 2>&1 &"
    await host.run(box, "sh", "-c", command)
    wait = f"until {ready}; do sleep 0.05; done"
    result = await host.run(box, "timeout", "30", "sh", "-c", wait)
    assert result.status == 0, (await host.run(box, "cat", "/root/out")).out
    return guest
