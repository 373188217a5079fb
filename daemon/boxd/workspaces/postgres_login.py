"""How a PostgreSQL connection begins, from both ends, so that a box comes to one role alone.

The box logs in here with a token of its own. Only then the server is asked, as the volume's role
and with that role's password, which the box never has. Everything after that is bytes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from boxd.secret import Secret
    from boxd.tunnel.channel import ByteReader, ByteWriter

PROTOCOL_3, SSL_REQUEST, GSS_REQUEST, CANCEL = 196608, 80877103, 80877104, 80877102
MAX_STARTUP = 10_000
"""Bytes of a client's first message: the server's own limit."""
MAX_MESSAGE = 64 * 1024
"""Bytes of a message of the server before it is ready."""
MAX_ITERATIONS = 1_000_000
_OK, _CLEARTEXT, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 3, 10, 11, 12
_MECHANISM = b"SCRAM-SHA-256"


class Refused(Exception):
    """The connection goes no further; `answer` is what the other side is told."""

    def __init__(self, text: str, code: str = "28000") -> None:
        super().__init__(text)
        self.answer = error_message(text, code)


class ServerRefused(Refused):
    """The server's own words, to be passed on as they are."""

    def __init__(self, message: bytes) -> None:
        super().__init__("the server refused")
        self.answer = message


class Reader(Protocol):
    """Where messages come from."""

    async def readexactly(self, n: int) -> bytes:
        """As asyncio's."""


@dataclass(frozen=True, slots=True)
class Startup:
    """A client that wants a session, with the parameters of it that it chose."""

    parameters: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Cancel:
    """A client that wants what another connection does to end: process and key of that one."""

    key: bytes


async def read_startup(reader: ByteReader, writer: ByteWriter) -> Startup | Cancel:
    """What a client wants. Encryption is declined: the tunnel has it. Refused, OSError,
    IncompleteReadError."""
    source = Exactly(reader)
    for _ in range(3):
        length, code = struct.unpack("!II", await source.readexactly(8))
        if not 8 <= length <= MAX_STARTUP:
            raise Refused("a malformed first message", "08P01")
        rest = await source.readexactly(length - 8)
        if code in (SSL_REQUEST, GSS_REQUEST):
            writer.write(b"N")
        elif code == CANCEL and len(rest) == 8:
            return Cancel(rest)
        elif code == PROTOCOL_3:
            return Startup(_parameters(rest))
        else:
            break
    raise Refused("a protocol that is not spoken here", "08P01")


async def check_token(
    reader: ByteReader,
    writer: ByteWriter,
    startup: Startup,
    role: str,
    database: str,
    token: Secret,
) -> None:
    """Has the client log in as exactly this role, with the token as password. Refused."""
    user = startup.parameters.get(b"user", b"")
    wanted = startup.parameters.get(b"database", user)
    if user != role.encode() or wanted != database.encode() or b"replication" in startup.parameters:
        raise Refused("this connection leads to the drive of the box alone")
    writer.write(struct.pack("!cII", b"R", 8, _CLEARTEXT))
    await writer.drain()
    source = Exactly(reader)
    kind, length = struct.unpack("!cI", await source.readexactly(5))
    if kind != b"p" or not 5 <= length <= MAX_STARTUP:
        raise Refused("no password", "08P01")
    password = await source.readexactly(length - 4)
    if not hmac.compare_digest(password, token.reveal().encode() + b"\0"):
        raise Refused("the drive was taken away from this box", "28P01")


async def login(
    reader: Reader, writer: ByteWriter, startup: Startup, role: str, password: Secret
) -> bytes:
    """Logs in at the server as the role; what it said until it was ready, for the client.

    Refused and its kinds; OSError, IncompleteReadError.
    """
    pairs = b"".join(key + b"\0" + value + b"\0" for key, value in startup.parameters.items())
    writer.write(struct.pack("!II", len(pairs) + 9, PROTOCOL_3) + pairs + b"\0")
    scram = Scram(password)
    said = b""
    while True:
        kind, body, message = await _message(reader)
        if kind == b"E":
            raise ServerRefused(message)
        if kind == b"R":
            await _authenticate(body, writer, scram)
            (code,) = struct.unpack_from("!I", body)
            said += message if code == _OK else b""
            continue
        said += message
        if kind == b"Z":
            return said


def cancel_key(said: bytes) -> bytes | None:
    """Process and key by which the connection can be cancelled, from what `login` returned."""
    at = 0
    while at < len(said):
        kind, length = struct.unpack_from("!cI", said, at)
        if kind == b"K" and length == 12:
            return said[at + 5 : at + 13]
        at += 1 + length
    return None


def cancel_request(key: bytes) -> bytes:
    """The message that cancels."""
    return struct.pack("!II", 16, CANCEL) + key


def error_message(text: str, code: str) -> bytes:
    """What a server says before it hangs up."""
    fields = {"S": "FATAL", "V": "FATAL", "C": code, "M": text}
    body = b"".join(key.encode() + value.encode() + b"\0" for key, value in fields.items()) + b"\0"
    return struct.pack("!cI", b"E", len(body) + 4) + body


class Scram:
    """The client's side of SCRAM-SHA-256 (RFC 5802, without channel binding)."""

    def __init__(self, password: Secret) -> None:
        """The password is ASCII, which needs no preparation."""
        self._password = password
        self._nonce = secrets.token_urlsafe(18)
        self._signature = b""
        self._proved = False

    def first(self) -> bytes:
        """Opens the exchange."""
        return f"n,,n=,r={self._nonce}".encode()

    def answer(self, challenge: bytes) -> bytes:
        """Proves that the password is known. Refused."""
        fields = _fields(challenge)
        try:
            nonce, salt = fields[b"r"].decode(), base64.b64decode(fields[b"s"])
            rounds = int(fields[b"i"])
        except (KeyError, ValueError):
            raise Refused("the database does not speak SCRAM", "08P01") from None
        if not nonce.startswith(self._nonce) or not 0 < rounds <= MAX_ITERATIONS:
            raise Refused("the database does not speak SCRAM", "08P01")
        salted = hashlib.pbkdf2_hmac(
            "sha256", self._password.reveal().encode("ascii"), salt, rounds
        )
        client = hmac.digest(salted, b"Client Key", "sha256")
        stored = hashlib.sha256(client).digest()
        bare = f"n=,r={self._nonce}".encode()
        without = b"c=" + base64.b64encode(b"n,,") + b",r=" + nonce.encode()
        whole = bare + b"," + challenge + b"," + without
        proof = bytes(
            a ^ b for a, b in zip(client, hmac.digest(stored, whole, "sha256"), strict=True)
        )
        server = hmac.digest(salted, b"Server Key", "sha256")
        self._signature = hmac.digest(server, whole, "sha256")
        return without + b",p=" + base64.b64encode(proof)

    def check(self, last: bytes) -> None:
        """The server has to know the password as well. Refused."""
        shown = base64.b64encode(self._signature)
        if not self._signature or not hmac.compare_digest(_fields(last).get(b"v", b""), shown):
            raise Refused("the database is not the one that it should be")
        self._proved = True

    @property
    def proved(self) -> bool:
        """Whether the server has shown that it knows the password."""
        return self._proved


class Exactly:
    """Reads so many bytes from a reader that gives what it has."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader

    async def readexactly(self, n: int) -> bytes:
        """As asyncio's."""
        data = b""
        while len(data) < n:
            more = await self._reader.read(n - len(data))
            if not more:
                raise asyncio.IncompleteReadError(data, n)
            data += more
        return data


async def _authenticate(body: bytes, writer: ByteWriter, scram: Scram) -> None:
    (code,) = struct.unpack_from("!I", body)
    if code == _OK:
        if not scram.proved:
            raise Refused("the database lets the drive's role in without its password")
    elif code == _SASL and _MECHANISM in body[4:].split(b"\0"):
        first = scram.first()
        start = _MECHANISM + b"\0" + struct.pack("!I", len(first)) + first
        writer.write(struct.pack("!cI", b"p", len(start) + 4) + start)
    elif code == _SASL_CONTINUE:
        answer = scram.answer(body[4:])
        writer.write(struct.pack("!cI", b"p", len(answer) + 4) + answer)
    elif code == _SASL_FINAL:
        scram.check(body[4:])
    else:
        raise Refused("the database wants another way to log in than SCRAM-SHA-256")
    await writer.drain()


async def _message(reader: Reader) -> tuple[bytes, bytes, bytes]:
    """Kind, body, and the message whole."""
    head = await reader.readexactly(5)
    kind, length = struct.unpack("!cI", head)
    if not 4 <= length <= MAX_MESSAGE:
        raise Refused("the database said something that is no message", "08P01")
    body = await reader.readexactly(length - 4)
    if kind == b"R" and len(body) < 4:
        raise Refused("the database said something that is no message", "08P01")
    return kind, body, head + body


def _parameters(rest: bytes) -> dict[bytes, bytes]:
    words = rest.split(b"\0")
    if len(words) % 2 or words[-2:] != [b"", b""]:
        raise Refused("a malformed first message", "08P01")
    words = words[:-2]
    return dict(zip(words[::2], words[1::2], strict=True))


def _fields(text: bytes) -> dict[bytes, bytes]:
    pairs = (part.partition(b"=") for part in text.split(b","))
    return {key: value for key, _, value in pairs}
