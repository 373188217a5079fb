"""Logins of boxes to the metadata database: accepted requests, and their role."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.secret import Secret
from boxd.workspaces import postgres_login
from boxd.workspaces.postgres_login import Cancel, Exactly, Refused, ServerRefused, Startup
from boxd.workspaces.provision import scram_verifier
from tests.harness.loop import run

TOKEN, PASSWORD = Secret("t" * 64), Secret("p" * 64)
WISH = Startup({b"user": b"role", b"database": b"boxd", b"search_path": b"role"})


class Wire:
    """What one side says; collects what it is answered."""

    def __init__(self, said: bytes = b"") -> None:
        self._said = said
        self.answered = b""

    async def read(self, n: int = -1) -> bytes:
        """At most three bytes at once, as slow lines bring them."""
        piece, self._said = self._said[: min(n, 3)], self._said[min(n, 3) :]
        return piece

    def write(self, data: bytes) -> None:
        """Takes an answer."""
        self.answered += data

    def write_eof(self) -> None:
        """Nothing more follows."""

    async def drain(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """It stays as it is."""

    async def wait_closed(self) -> None:
        """It stays as it is."""


def startup(**parameters: str) -> bytes:
    """A client's first message."""
    pairs = b"".join(f"{key}\0{value}\0".encode() for key, value in parameters.items())
    return struct.pack("!II", len(pairs) + 9, 196608) + pairs + b"\0"


def message(kind: bytes, body: bytes) -> bytes:
    """A message of either side."""
    return struct.pack("!cI", kind, len(body) + 4) + body


def began(said: bytes) -> tuple[Startup | Cancel, bytes]:
    """What a client wants, and what it is answered meanwhile."""
    wire = Wire(said)
    return run(postgres_login.read_startup(wire, wire)), wire.answered


def test_encryption_is_declined_and_wishes_are_read() -> None:
    asked = struct.pack("!II", 8, postgres_login.SSL_REQUEST)
    asked += struct.pack("!II", 8, postgres_login.GSS_REQUEST)
    wish, answered = began(asked + startup(user="role", search_path="x"))
    assert wish == Startup({b"user": b"role", b"search_path": b"x"})
    assert answered == b"NN"
    key = struct.pack("!II", 7, 9)
    assert began(postgres_login.cancel_request(key))[0] == Cancel(key)


@given(st.binary(max_size=60))
def test_anything_else_is_refused(said: bytes) -> None:
    with pytest.raises((Refused, EOFError)):
        began(said)


@given(st.binary(max_size=40).filter(lambda rest: rest != b"\0"))
def test_malformed_parameters_are_refused_or_read_as_they_are(rest: bytes) -> None:
    said = struct.pack("!II", len(rest) + 8, 196608) + rest
    try:
        wish, _ = began(said)
    except Refused:
        return
    assert isinstance(wish, Startup)
    pairs = b"".join(key + b"\0" + value + b"\0" for key, value in wish.parameters.items())
    assert len(pairs) <= len(rest)


def logged_in(parameters: dict[bytes, bytes], password: bytes) -> bytes:
    """What a client is answered that says it is these, with a password."""
    wire = Wire(message(b"p", password + b"\0"))
    run(postgres_login.check_token(wire, wire, Startup(parameters), "role", "boxd", TOKEN))
    return wire.answered


def test_only_this_role_gets_in_with_the_token() -> None:
    right = TOKEN.reveal().encode()
    assert logged_in(WISH.parameters, right) == struct.pack("!cII", b"R", 8, 3)
    for change in ({b"user": b"postgres"}, {b"database": b"other"}, {b"replication": b"true"}):
        with pytest.raises(Refused, match="of the box's drive"):
            logged_in({**WISH.parameters, **change}, right)
    with pytest.raises(Refused, match="of the box's drive"):
        logged_in({b"user": b"role"}, right)
    for wrong in (b"", right[:-1], right + b"x", right[::-1] + b"\0", b"u" * 64):
        with pytest.raises(Refused, match="no longer attached") as refused:
            logged_in(WISH.parameters, wrong)
        assert b"C28P01\0" in refused.value.answer


class Server:
    """A PostgreSQL server with one role, as far as logging in goes."""

    def __init__(self, *, forged: bool = False, after: bytes = b"") -> None:
        self._verifier = scram_verifier(PASSWORD)
        self._forged = forged
        self._after = after
        self._reader = asyncio.StreamReader()
        self._first = b""
        self._challenge = b""

    async def readexactly(self, n: int) -> bytes:
        """What it says."""
        return await self._reader.readexactly(n)

    def write(self, data: bytes) -> None:
        """Takes what the client says."""
        if data[:1] != b"p":
            self._reader.feed_data(message(b"R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0"))
        elif b"SCRAM-SHA-256\0" in data:
            self._first = data.partition(b"n,,")[2]
            _, rounds_salt, _ = self._verifier.split("$")
            rounds, salt = rounds_salt.split(":")
            nonce = self._first.partition(b"r=")[2].decode() + "server"
            self._challenge = f"r={nonce},s={salt},i={rounds}".encode()
            self._reader.feed_data(message(b"R", struct.pack("!I", 11) + self._challenge))
        else:
            self._finish(data[5:])

    def _finish(self, proof: bytes) -> None:
        stored, server = (base64.b64decode(x) for x in self._verifier.split("$")[2].split(":"))
        without, _, shown = proof.rpartition(b",p=")
        whole = self._first + b"," + self._challenge + b"," + without
        signature = hmac.digest(stored, whole, "sha256")
        client = bytes(a ^ b for a, b in zip(base64.b64decode(shown), signature, strict=True))
        if hashlib.sha256(client).digest() != stored:
            self._reader.feed_data(postgres_login.error_message("wrong password", "28P01"))
            return
        final = hmac.digest(server if not self._forged else b"x" * 32, whole, "sha256")
        said = message(b"R", struct.pack("!I", 12) + b"v=" + base64.b64encode(final))
        self._reader.feed_data(said + message(b"R", struct.pack("!I", 0)) + self._after)

    def write_eof(self) -> None:
        """Nothing more follows."""

    async def drain(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """It stays as it is."""

    async def wait_closed(self) -> None:
        """It stays as it is."""


KEY = struct.pack("!II", 11, 22)
GREETING = message(b"S", b"a\0b\0") + message(b"K", KEY) + message(b"Z", b"I")


async def log_in(password: Secret, after: bytes, *, forged: bool = False) -> bytes:
    """What the client hears of a login at the server."""
    server = Server(forged=forged, after=after)
    return await postgres_login.login(server, server, WISH, "role", password)


def test_the_role_logs_in_with_its_password() -> None:
    said = run(log_in(PASSWORD, after=GREETING))
    assert said == message(b"R", struct.pack("!I", 0)) + GREETING
    assert postgres_login.cancel_key(said) == KEY


def test_words_of_the_server_are_passed_on() -> None:
    with pytest.raises(ServerRefused) as refused:
        run(log_in(TOKEN, after=GREETING))
    assert refused.value.answer == postgres_login.error_message("wrong password", "28P01")
    full = postgres_login.error_message("too many connections", "53300")
    with pytest.raises(ServerRefused) as refused:
        run(log_in(PASSWORD, after=full))
    assert refused.value.answer == full


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    with pytest.raises(Refused, match="did not prove"):
        run(log_in(PASSWORD, forged=True, after=GREETING))


@pytest.mark.parametrize(
    ("code", "text"), [(0, "without a password"), (3, "a login method"), (5, "a login method")]
)
def test_other_ways_to_log_in_are_refused(code: int, text: str) -> None:
    async def ask() -> bytes:
        reader, wire = asyncio.StreamReader(), Wire()
        reader.feed_data(message(b"R", struct.pack("!I", code) + b"salt") + GREETING)
        return await postgres_login.login(reader, wire, WISH, "role", PASSWORD)

    with pytest.raises(Refused, match=text):
        run(ask())


@given(st.binary(max_size=80))
def test_a_server_can_say_what_it_likes(said: bytes) -> None:
    async def ask() -> bytes:
        reader, wire = asyncio.StreamReader(), Wire()
        reader.feed_data(said)
        reader.feed_eof()
        return await postgres_login.login(reader, wire, WISH, "role", PASSWORD)

    with pytest.raises((Refused, EOFError)):
        run(ask())


def test_exactly_means_all_or_nothing() -> None:
    assert run(Exactly(Wire(b"12345678")).readexactly(8)) == b"12345678"
    with pytest.raises(asyncio.IncompleteReadError):
        run(Exactly(Wire(b"1234")).readexactly(5))
