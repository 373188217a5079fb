"""What clients say, from which nonsense is made. Packets as they should be, with chosen fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.harmless import BOX, COMMANDS, REQUESTS, TARGETS, TEXT_ONLY
from tests.fuzz.wire import number, string

if TYPE_CHECKING:
    from random import Random

LINES = (
    *(b"ls", b"ls --json", b"help", b"help ls", b"whoami", b"info nothing", b"rm nothing", b"''"),
    *(b"apikeys ls", b"suspend nothing", b"pin nothing 1h", b"snapshot ls nothing", b"\xff\xfe"),
)
"""What user `cli` types. None of it makes anything."""
NAMES = (
    *(b"shell", b"exec", b"subsystem", b"env", b"x11-req", b"auth-agent-req@openssh.com"),
    *(b"exit-status", b"exit-signal", b"keepalive@openssh.com", b"nonsense", b"", b"\xff"),
    *sorted(REQUESTS),
)
GLOBALS = (
    *(b"tcpip-forward", b"cancel-tcpip-forward", b"streamlocal-forward@openssh.com"),
    *(b"hostkeys-prove-00@openssh.com", b"no-more-sessions@openssh.com", b"nonsense"),
)
METHODS = (b"none", b"password", b"keyboard-interactive", b"hostbased", b"gssapi-with-mic")


def auth_requests(random: Random, signed: bytes) -> list[bytes]:
    """Ways to ask to be let in, the right one at a random place among them."""
    user = random.choice(sorted(TEXT_ONLY)).encode()
    head = b"\x32" + string(user) + string(b"ssh-connection")
    asked = [head + string(random.choice(METHODS)) for _ in range(random.randrange(5))]
    asked.append(head + string(b"password") + b"\0" + string(b"guessed"))
    blob = (
        string(b"ssh-rsa") + string(b"\1\0\1") + string(random.randbytes(random.choice((9, 257))))
    )
    asked.append(head + string(b"publickey") + b"\0" + string(b"rsa-sha2-512") + string(blob))
    asked.insert(random.randrange(len(asked) + 1), signed)
    return [b"\x05" + string(b"ssh-userauth"), *asked]


def in_between(random: Random) -> bytes:
    """A packet that belongs to no channel."""
    match random.randrange(6):
        case 0:
            return b"\x02" + string(random.randbytes(random.randrange(40)))
        case 1:
            return b"\x04\1" + string(b"look here") + string(b"")
        case 2:
            return b"\x03" + number(random.randrange(100))
        case 3:
            kind, asks = random.choice(GLOBALS), random.choice((b"\0", b"\1"))
            return b"\x50" + string(kind) + asks + string(b"127.0.0.1") + number(0)
        case 4:
            return random.choice((b"\x51", b"\x52"))
        case _:
            return b"\x01" + number(11) + string(b"enough") + string(b"")


def session(random: Random) -> bytes:
    """A wish for a session, with a window and a size of packets that may be odd."""
    window = random.choice((0, 1, 1 << 15, 1 << 21, (1 << 32) - 1))
    size = random.choice((0, 1, 1 << 15, (1 << 32) - 1))
    return (
        b"\x5a" + string(b"session") + number(random.randrange(4)) + number(window) + number(size)
    )


def connection(random: Random, user: str) -> bytes:
    """A wish for a connection to somewhere."""
    if user in TARGETS:
        host, port = random.choice(TARGETS[user])
    else:
        host, port = random.choice(((b"127.0.0.1", 9), (b"x" * 300, 1 << 31), (b"\xff", 0)))
    place = string(host) + number(port) + string(b"::1") + number(1)
    kind = random.choice((b"direct-tcpip",) * 3 + (b"nonsense", b"x11", b"forwarded-tcpip"))
    return b"\x5a" + string(kind) + number(0) + number(1 << 20) + number(1 << 15) + place


def on_channel(random: Random, user: str, channel: int) -> list[bytes]:
    """What is said on a session, from its beginning to its end."""
    where = number(channel)
    terminal = string(b"xterm") + number(80) + number(24) + number(0) * 2
    said = []
    if random.random() < 0.4:
        modes = string(bytes([1]) + number(3) + bytes([random.randrange(256)]) + number(1) + b"\0")
        said.append(_request(where, b"pty-req") + terminal + modes)
    if random.random() < 0.4:
        said.append(_request(where, b"env") + string(b"LANG") + string(b"C"))
    said.append(_beginning(random, user, where))
    said += [b"\x5e" + where + string(random.randbytes(random.choice((0, 1, 70, 9000))))] * 2
    said.append(b"\x5d" + where + number(random.choice((0, 1, 1 << 20, (1 << 32) - 1))))
    said.append(b"\x5f" + where + number(random.choice((0, 1, 9))) + string(b"aside"))
    said.append(_request(where, random.choice(NAMES)) + string(b"TERM") + number(1) * 3)
    return [*said, b"\x60" + where, b"\x61" + where]


def _beginning(random: Random, user: str, where: bytes) -> bytes:
    if user == BOX:
        return _request(where, b"exec") + string(random.choice(COMMANDS))
    kind = random.choice((b"exec",) * 4 + (b"shell", b"subsystem"))
    if kind == b"shell":
        return _request(where, kind)
    return _request(where, kind) + string(random.choice(LINES) if kind == b"exec" else b"sftp")


def _request(where: bytes, name: bytes) -> bytes:
    return b"\x62" + where + string(name) + b"\1"
