"""Small clients that speak only a part of the protocol get in like OpenSSH's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.ssh.openssh import HOST, run

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance


async def test_dropbear_gets_output_and_exit_status(front_door: Entrance) -> None:
    """It sends the first message of the key exchange before it knows what was chosen."""
    client = front_door.client
    key = client.directory / "dropbear"
    made = await run(["dropbearkey", "-t", "ed25519", "-f", str(key)])
    assert made.status == 0
    port = str(front_door.door.port)
    words = ["-y", "-y", "-i", str(key), "-p", port, f"web@{HOST}", "echo out; exit 4"]
    done = await run(["dbclient", *words])
    assert done.status == 4, done.errors
    assert done.stdout == b"out\n"
