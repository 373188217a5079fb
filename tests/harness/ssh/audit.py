"""ssh-audit with the committed policy, and strict key exchange."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

from asyncssh.constants import MSG_DISCONNECT, MSG_IGNORE, MSG_KEXINIT
from asyncssh.packet import NameList, SSHPacket, String

from tests.harness.ssh.openssh import HOST, Done, run
from tests.harness.wait import DEADLINE

POLICY = Path(__file__).parents[2] / "security/ssh_audit_policy.txt"
STRICT = b"kex-strict-c-v00@openssh.com"


async def audit(port: int, *words: str) -> Done:
    """Return the verdict of ssh-audit."""
    program = Path(sys.executable).with_name("ssh-audit")
    return await run([str(program), "--no-colors", "-p", str(port), *words, HOST])


def packet(payload: bytes) -> bytes:
    """Return a packet as it is on the wire before the key exchange."""
    padding = 8 - (len(payload) + 5) % 8
    padding += 8 * (padding < 4)
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def offer(*more: bytes) -> bytes:
    """Return the first message of a key exchange; `more` are additional marks among its methods."""
    ciphers, macs = [b"aes128-gcm@openssh.com"], [b"hmac-sha2-256-etm@openssh.com"]
    lists = [[b"curve25519-sha256", *more], [b"ssh-ed25519"], ciphers, ciphers, macs, macs]
    lists += [[b"none"], [b"none"], [], []]
    return bytes([MSG_KEXINIT]) + bytes(16) + b"".join(map(NameList, lists)) + bytes(5)


async def answers(port: int, *payloads: bytes) -> list[SSHPacket]:
    """Return the packets of a server until it closes the connection or sends no more."""
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
    """Check that a packet injected into the first key exchange ends a strict client's connection.

    Otherwise an attacker between the two could inject packets.
    """
    slipped = bytes([MSG_IGNORE]) + String(b"")
    *_, last = await answers(port, offer(STRICT), slipped)
    assert last.get_byte() == MSG_DISCONNECT
    last.get_uint32()
    assert last.get_string() == b"Strict key exchange violation: unexpected packet type 2 received"
    *_, last = await answers(port, slipped, offer(STRICT))
    assert last.get_byte() == MSG_DISCONNECT
    last.get_uint32()
    assert last.get_string() == b"Strict key exchange violation: KEXINIT was not the first packet"
