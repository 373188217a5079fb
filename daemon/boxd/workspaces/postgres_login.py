"""Both sides of a PostgreSQL login, so that a box can use only one role.

The box logs in to the daemon with its own token. Then the daemon logs in to the server as the role
of the volume, with the role's password, which the box never has. After that the daemon only relays
bytes.
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
"""Maximum size of a client's first message, in bytes. This is the limit of PostgreSQL itself."""
MAX_MESSAGE = 64 * 1024
"""Maximum size of a message of the server before it is ready, in bytes."""
MAX_ITERATIONS = 1_000_000
_OK, _CLEARTEXT, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 3, 10, 11, 12
_MECHANISM = b"SCRAM-SHA-256"


class Refused(Exception):
    """The login failed. `answer` is the message for the client."""

    def __init__(self, text: str, code: str = "28000") -> None:
        super().__init__(text)
        self.answer = error_message(text, code)


class ServerRefused(Refused):
    """The server refused the login. Its message goes to the client unchanged."""

    def __init__(self, message: bytes) -> None:
        super().__init__("the server refused")
        self.answer = message


class Reader(Protocol):
    """A source of messages."""

    async def readexactly(self, n: int) -> bytes:
        """Read n bytes, as `asyncio.StreamReader` does."""


@dataclass(frozen=True, slots=True)
class Startup:
    """A request for a session, with the parameters that the client chose."""

    parameters: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to cancel the statement of another connection, given by its process and key."""

    key: bytes


async def read_startup(reader: ByteReader, writer: ByteWriter) -> Startup | Cancel:
    """Read the request of a client. Raises Refused, OSError or IncompleteReadError.

    Declines encryption, because the tunnel is encrypted.
    """
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
    raise Refused("unsupported protocol version", "08P01")


async def check_token(
    reader: ByteReader,
    writer: ByteWriter,
    startup: Startup,
    role: str,
    database: str,
    token: Secret,
) -> None:
    """Require the client to log in as `role`, with the token as password. Raises Refused."""
    user = startup.parameters.get(b"user", b"")
    name = startup.parameters.get(b"database", user)
    if user != role.encode() or name != database.encode() or b"replication" in startup.parameters:
        raise Refused("this connection allows only the role and the database of the box's drive")
    writer.write(struct.pack("!cII", b"R", 8, _CLEARTEXT))
    await writer.drain()
    source = Exactly(reader)
    kind, length = struct.unpack("!cI", await source.readexactly(5))
    if kind != b"p" or not 5 <= length <= MAX_STARTUP:
        raise Refused("no password", "08P01")
    password = await source.readexactly(length - 4)
    if not hmac.compare_digest(password, token.reveal().encode() + b"\0"):
        raise Refused("the drive is no longer attached to this box", "28P01")


async def login(
    reader: Reader, writer: ByteWriter, startup: Startup, role: str, password: Secret
) -> bytes:
    """Log in to the server as the role; return its messages until it is ready, for the client.

    Raises Refused, ServerRefused, OSError or IncompleteReadError.
    """
    pairs = b"".join(key + b"\0" + value + b"\0" for key, value in startup.parameters.items())
    writer.write(struct.pack("!II", len(pairs) + 9, PROTOCOL_3) + pairs + b"\0")
    scram = Scram(password)
    greeting = b""
    while True:
        kind, body, message = await _message(reader)
        if kind == b"E":
            raise ServerRefused(message)
        if kind == b"R":
            await _authenticate(body, writer, scram)
            (code,) = struct.unpack_from("!I", body)
            greeting += message if code == _OK else b""
            continue
        greeting += message
        if kind == b"Z":
            return greeting


def cancel_key(greeting: bytes) -> bytes | None:
    """Return the process and key for a cancel request, from the result of `login`."""
    position = 0
    while position < len(greeting):
        kind, length = struct.unpack_from("!cI", greeting, position)
        if kind == b"K" and length == 12:
            return greeting[position + 5 : position + 13]
        position += 1 + length
    return None


def cancel_request(key: bytes) -> bytes:
    """Return the message of a cancel request."""
    return struct.pack("!II", 16, CANCEL) + key


def error_message(text: str, code: str) -> bytes:
    """Return the message that a server sends before it closes the connection."""
    fields = {"S": "FATAL", "V": "FATAL", "C": code, "M": text}
    body = b"".join(key.encode() + value.encode() + b"\0" for key, value in fields.items()) + b"\0"
    return struct.pack("!cI", b"E", len(body) + 4) + body


class Scram:
    """The client's side of SCRAM-SHA-256 (RFC 5802, without channel binding)."""

    def __init__(self, password: Secret) -> None:
        """The password must be ASCII, which needs no SASLprep."""
        self._password = password
        self._nonce = secrets.token_urlsafe(18)
        self._signature = b""
        self._proved = False

    def first(self) -> bytes:
        """Return the first message of the exchange."""
        return f"n,,n=,r={self._nonce}".encode()

    def answer(self, challenge: bytes) -> bytes:
        """Return the proof that the client knows the password. Raises Refused."""
        fields = _fields(challenge)
        malformed = Refused("the database sent a malformed SCRAM message", "08P01")
        try:
            nonce, salt = fields[b"r"].decode(), base64.b64decode(fields[b"s"])
            rounds = int(fields[b"i"])
        except (KeyError, ValueError):
            raise malformed from None
        if not nonce.startswith(self._nonce) or not 0 < rounds <= MAX_ITERATIONS:
            raise malformed
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
        """Check that the server knows the password, too. Raises Refused."""
        expected = base64.b64encode(self._signature)
        if not self._signature or not hmac.compare_digest(_fields(last).get(b"v", b""), expected):
            raise Refused("the database did not prove its identity")
        self._proved = True

    @property
    def proved(self) -> bool:
        """Whether the server has proved that it knows the password."""
        return self._proved


class Exactly:
    """Reads an exact number of bytes from a reader that may return fewer."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader

    async def readexactly(self, n: int) -> bytes:
        """Read n bytes, as `asyncio.StreamReader` does."""
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
            raise Refused("the database accepts the drive's role without a password")
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
        raise Refused("the database requires a login method other than SCRAM-SHA-256")
    await writer.drain()


async def _message(reader: Reader) -> tuple[bytes, bytes, bytes]:
    """Return the kind, the body and the whole of a message."""
    head = await reader.readexactly(5)
    kind, length = struct.unpack("!cI", head)
    if not 4 <= length <= MAX_MESSAGE:
        raise Refused("the database sent a malformed message", "08P01")
    body = await reader.readexactly(length - 4)
    if kind == b"R" and len(body) < 4:
        raise Refused("the database sent a malformed message", "08P01")
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
