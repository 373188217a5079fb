"""What the SSH listener offers: what ssh-audit makes of it, and strict key exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.shared import algorithms
from boxd.config import Address
from boxd.ssh.connection import listener
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from tests.harness.ssh.audit import POLICY, audit, check_strict
from tests.harness.ssh.openssh import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance


@pytest.mark.promise("S5")
async def test_the_front_door_passes_the_policy_and_fails_nothing(front_door: Entrance) -> None:
    port = front_door.door.port
    done = await audit(port, "-P", str(POLICY))
    assert done.status == 0, done.text
    listed = (await audit(port)).text
    assert "[fail]" not in listed
    # The one warning: clients before OpenSSH 9.9 know no other exchange.
    warned = [line.split()[1] for line in listed.splitlines() if "[warn]" in line]
    assert set(warned) == {"curve25519-sha256", "curve25519-sha256@libssh.org"}, listed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEX", ("mlkem768x25519-sha256", "curve25519-sha256")),
        ("KEX", (*algorithms.KEX, "diffie-hellman-group14-sha256")),
        ("CIPHERS", (*algorithms.CIPHERS, "aes256-cbc")),
        ("MACS", (*algorithms.MACS, "hmac-sha2-256")),
    ],
    ids=["other-order", "finite-field", "cbc", "no-etm"],
)
async def test_another_list_does_not_pass(
    front_door: Entrance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: tuple[str, ...],
) -> None:
    monkeypatch.setattr(listener, name, value)
    tmp_path.chmod(0o700)
    other = SshListener(front_door.operations, ListenerSettings(Address(HOST, 0), tmp_path))
    await other.start()
    try:
        done = await audit(other.port, "-P", str(POLICY))
    finally:
        await other.close(drain_s=0)
    assert done.status == 3, done.text


@pytest.mark.promise("S5")
async def test_what_is_slipped_into_the_first_key_exchange_ends_the_connection(
    front_door: Entrance,
) -> None:
    await check_strict(front_door.door.port)
