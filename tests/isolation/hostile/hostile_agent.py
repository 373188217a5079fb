"""An agent that attacks the daemon through its own tunnel: `hostile_agent RUN_DIR ATTACK`.

It has the box's identity, says hello like any other, and then does one thing without end. Exit
status 0 and the number of tries on stdout when the daemon cut it off; 1 when it got away with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncssh.constants import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_GLOBAL_REQUEST,
    MSG_IGNORE,
    MSG_KEXINIT,
    MSG_UNIMPLEMENTED,
)
from asyncssh.packet import Boolean, String, UInt32

from box_guest import protocol
from tests.harness.agents.impostor import GREETING, Impostor, dial
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncssh

MANY = 100_000
AT_ONCE = 200
"""Sent before the loop runs again: with a writer that never rests nothing would be read."""
ESCAPE_S = 60.0
CONTROL = 0
"""The daemon's number of the first channel that it opens."""


def _packets(connection: asyncssh.SSHServerConnection, attack: str, number: int) -> None:
    """One try."""
    send = connection.send_packet
    if attack == "opens":
        place = String("127.0.0.1") + UInt32(22)
        head = String("forwarded-tcpip") + UInt32(number) + UInt32(1 << 20) + UInt32(1 << 15)
        send(MSG_CHANNEL_OPEN, head, place, place)
    elif attack == "unknown opens":
        head = String("x" * 600) + UInt32(number) + UInt32(1) + UInt32(1)
        send(MSG_CHANNEL_OPEN, head)
    elif attack == "global requests":
        send(MSG_GLOBAL_REQUEST, String("x"), Boolean(True))
    elif attack == "ignored":
        send(MSG_IGNORE, String(b""))
    elif attack == "not understood":
        send(MSG_UNIMPLEMENTED, UInt32(number))
    elif attack == "empty data":
        send(MSG_CHANNEL_DATA, UInt32(CONTROL), String(b""))
    elif attack == "windows":
        send(MSG_CHANNEL_WINDOW_ADJUST, UInt32(CONTROL), UInt32(1))
    elif attack == "channel requests":
        send(MSG_CHANNEL_REQUEST, UInt32(CONTROL), String("x"), Boolean(False))
    elif attack == "foreign channel":
        send(MSG_CHANNEL_DATA, UInt32(77), String(b"x"))
    elif attack == "oversized frame":
        send(MSG_IGNORE, String(bytes(1 << 20)))
    elif attack == "key exchange out of order":
        send(MSG_KEXINIT, b"x")


LINES: dict[str, Callable[[int], bytes]] = {
    "requests": lambda n: protocol.encode({"type": "life", "id": n}),
    "pins": lambda n: protocol.encode({"type": "pin", "id": n, "for_s": 60, "why": "x" * 200}),
    "activity": lambda n: protocol.encode({"type": "activity", "shells": n}),
    "activity of no number": lambda n: protocol.encode({"type": "activity", "shells": "all"}),
    "unknown lines": lambda n: protocol.encode({"type": "log", "text": "y" * 1000}),
    "garbage": lambda n: b"\xff\x00\n",
    "endless line": lambda n: b"x" * 1000,
    "replayed hello": lambda n: GREETING,
    "replies": lambda n: protocol.encode({"type": "reply", "id": n, "ok": True, "result": {}}),
    "deep line": lambda n: json.dumps({"type": "activity"}).encode()[:-1] + b"[" * 30000 + b"\n",
}


async def attack(run_dir: Path, kind: str) -> int:
    """How many tries it took until the daemon cut it off; fails when it did not."""
    server = Impostor([GREETING])
    connection = await dial(run_dir, (run_dir / protocol.HOST_KEY).read_bytes(), server)
    async with asyncio.timeout(ESCAPE_S):
        await until(lambda: server.control.started)
        # Deaf from now on: a proper agent would end the connection at what it gets for this.
        vars(connection)["process_packet"] = lambda *_: True
        for number in range(MANY):
            if connection.is_closed() or server.control.chan.is_closing():
                return number
            if kind in LINES:
                server.control.chan.write(LINES[kind](number))
            else:
                _packets(connection, kind, number)
            if number % AT_ONCE == 0 or kind == "oversized frame":
                await asyncio.sleep(0)
        await connection.wait_closed()
    return MANY


async def dials(run_dir: Path) -> int:
    """Connects again and again, and says nothing."""
    path = str(run_dir / protocol.TUNNEL_SOCKET)
    async with asyncio.timeout(ESCAPE_S):
        for number in range(MANY):
            try:
                _, writer = await asyncio.open_unix_connection(path)
            except ConnectionRefusedError:
                return number
            writer.close()
    return 0


def main() -> int:
    """See the module."""
    logging.disable()
    run_dir, kind = Path(sys.argv[1]), sys.argv[2]
    try:
        tries = asyncio.run(dials(run_dir) if kind == "dials" else attack(run_dir, kind))
    except TimeoutError:
        return 1
    print(tries)
    return 0 if tries else 1


if __name__ == "__main__":
    sys.exit(main())
