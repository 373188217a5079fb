"""What the SSH listener offers: what ssh-audit makes of it, and strict key exchange."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from asyncssh.constants import MSG_DISCONNECT, MSG_IGNORE, MSG_KEXINIT
from asyncssh.packet import NameList, SSHPacket, String

from box_guest.shared import algorithms
from boxd.config import Address
from boxd.ssh.connection import listener
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from tests.harness.ssh.openssh import HOST, Done, run
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance

POLICY = Path(__file__).with_name("ssh_audit_policy.txt")
STRICT = b"kex-strict-c-v00@openssh.com"


async def audit(port: int, *words: str) -> Done:
    """ssh-audit's verdict."""
    program = Path(sys.executable).with_name("ssh-audit")
    return await run([str(program), "--no-colors", "-p", str(port), *words, HOST])


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


def packet(payload: bytes) -> bytes:
    """As it goes over the wire before there are keys."""
    padding = 8 - (len(payload) + 5) % 8
    padding += 8 * (padding < 4)
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def offer(*more: bytes) -> bytes:
    """The first message of a key exchange; `more` are marks among its methods."""
    ciphers, macs = [b"aes128-gcm@openssh.com"], [b"hmac-sha2-256-etm@openssh.com"]
    lists = [[b"curve25519-sha256", *more], [b"ssh-ed25519"], ciphers, ciphers, macs, macs]
    lists += [[b"none"], [b"none"], [], []]
    return bytes([MSG_KEXINIT]) + bytes(16) + b"".join(map(NameList, lists)) + bytes(5)


async def answers(port: int, *payloads: bytes) -> list[SSHPacket]:
    """What a server says until it closes the connection or falls silent."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"SSH-2.0-test\r\n" + b"".join(map(packet, payloads)))
    seen = []
    try:
        async with asyncio.timeout(DEADLINE):
            assert (await reader.readline()).startswith(b"SSH-2.0-")
            while head := await reader.read(4):
                body = await reader.readexactly(int.from_bytes(head, "big"))
                seen.append(SSHPacket(body[1 : -body[0]]))
                if len(seen) == len(payloads) + 1:
                    break
    finally:
        writer.close()
        await writer.wait_closed()
    return seen


async def check_strict(port: int) -> None:
    """What is slipped into the first key exchange ends the connection, if the client is strict,
    too: else nobody who sits between the two is kept from it."""
    slipped = bytes([MSG_IGNORE]) + String(b"")
    *_, last = await answers(port, offer(STRICT), slipped)
    assert last.get_byte() == MSG_DISCONNECT
    last.get_uint32()
    assert last.get_string() == b"Strict key exchange violation: unexpected packet type 2 received"
    *_, last = await answers(port, slipped, offer(STRICT))
    assert last.get_byte() == MSG_DISCONNECT
    last.get_uint32()
    assert last.get_string() == b"Strict key exchange violation: KEXINIT was not the first packet"


@pytest.mark.promise("S5")
async def test_what_is_slipped_into_the_first_key_exchange_ends_the_connection(
    front_door: Entrance,
) -> None:
    await check_strict(front_door.door.port)
