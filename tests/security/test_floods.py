"""Clients that say more than an honest one would are disconnected, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from asyncssh.constants import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_OPEN_CONFIRMATION,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_GLOBAL_REQUEST,
    MSG_IGNORE,
    MSG_KEX_LAST,
    MSG_UNIMPLEMENTED,
    MSG_USERAUTH_LAST,
    MSG_USERAUTH_REQUEST,
)
from asyncssh.packet import Boolean, String, UInt32

from boxd.ssh.connection import message_limits
from tests.harness.ssh.openssh import run, running
from tests.harness.wait import DEADLINE, until
from tests.security.clients import connect, unproved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncssh

    from tests.harness.ssh.frontdoor import Entrance

MANY = 50_000
AT_ONCE = 100
"""Sent before the door has its turn."""

TEXTS = {
    "requests": "too many requests",
    "opens": "too many channels opened in a second",
    "ignored": "too many messages without data",
    "not understood": "too many messages without data",
    "empty data": "too many messages without data",
    "windows": "too many messages without data",
    "channel requests": "too many messages without data",
    "variables": "too many environment variables",
    "large variables": "too many environment variables",
}
EARLY_TEXTS = {
    "none": "too many authentication requests",
    "passwords": "too many authentication requests",
    "ignored": "too many messages before authentication",
    "not understood": "too many messages before authentication",
    "answers to no question": "too many messages before authentication",
}


def flood(connection: asyncssh.SSHClientConnection, kind: str, number: int) -> None:
    """One message of a client that has authenticated and has opened one session."""
    send = connection.send_packet
    if kind == "requests":
        send(MSG_GLOBAL_REQUEST, String("x"), Boolean(True))
    elif kind == "opens":
        head = String("session") + UInt32(number) + UInt32(1 << 20) + UInt32(1 << 15)
        send(MSG_CHANNEL_OPEN, head)
    elif kind == "ignored":
        send(MSG_IGNORE, String(b""))
    elif kind == "not understood":
        send(MSG_UNIMPLEMENTED, UInt32(number))
    elif kind == "empty data":
        send(MSG_CHANNEL_DATA, UInt32(0), String(b""))
    elif kind == "windows":
        send(MSG_CHANNEL_WINDOW_ADJUST, UInt32(0), UInt32(1))
    elif kind == "channel requests":
        send(MSG_CHANNEL_REQUEST, UInt32(0), String("x"), Boolean(False))
    else:
        variable = String(f"V{number}") + String(bytes(30_000 * (kind == "large variables")))
        send(MSG_CHANNEL_REQUEST, UInt32(0), String("env"), Boolean(False), variable)


def early_flood(connection: asyncssh.SSHClientConnection, kind: str, number: int) -> None:
    """One message of a client that has proved nothing."""
    send, head = connection.send_packet, String("web") + String("ssh-connection")
    if kind == "none":
        send(MSG_USERAUTH_REQUEST, head, String("none"))
    elif kind == "passwords":
        send(MSG_USERAUTH_REQUEST, head, String("password"), Boolean(False), String(str(number)))
    elif kind == "ignored":
        send(MSG_IGNORE, String(b""))
    elif kind == "not understood":
        send(MSG_UNIMPLEMENTED, UInt32(number))
    elif not number:
        send(MSG_USERAUTH_REQUEST, head, String("publickey"), b"")
    else:
        send(MSG_USERAUTH_LAST, b"")


def closed(connection: asyncssh.SSHClientConnection) -> bool:
    """Whether the door has closed it, as far as this end knows."""
    return connection._transport is None or connection._transport.is_closing()


async def pour(
    connection: asyncssh.SSHClientConnection,
    message: Callable[[asyncssh.SSHClientConnection, str, int], None],
    kind: str,
) -> int:
    """Sends messages until the door closes the connection: how many it took."""
    # Deaf: a proper client would end the connection at what it gets for this.
    vars(connection)["process_packet"] = lambda *_: True
    for number in range(MANY):
        if closed(connection):
            return number
        message(connection, kind, number)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return MANY


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[str], Awaitable[None]]:
    """Waits until the door has said why it closes a connection."""
    caplog.set_level(logging.INFO, "asyncssh")

    async def wait(text: str) -> None:
        await until(lambda: f"Sending disconnect: {text} (2)" in caplog.text)

    return wait


@pytest.mark.parametrize("kind", TEXTS)
async def test_a_flood_ends_its_connection_only(
    front_door: Entrance,
    told: Callable[[str], Awaitable[None]],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a machine that is busy with other things no flood may be as fast as the real limits.
    if TEXTS[kind] != TEXTS["variables"]:  # those that are small say nothing, too
        monkeypatch.setattr(message_limits, "EMPTY_MESSAGES", (100, 1000))
    monkeypatch.setattr(message_limits, "CHANNEL_OPENS", (20, 200))
    async with running(front_door.client.ssh("cli", "help")) as neighbour:
        connection = await connect(front_door)
        answers: list[int] = []

        def answered(kind: int, *_: object) -> bool:
            answers.append(kind)
            return True

        vars(connection)["process_packet"] = answered
        session = String("session") + UInt32(0) + UInt32(1 << 20) + UInt32(1 << 15)
        connection.send_packet(MSG_CHANNEL_OPEN, session)
        await until(lambda: MSG_CHANNEL_OPEN_CONFIRMATION in answers)
        async with asyncio.timeout(DEADLINE):
            assert await pour(connection, flood, kind) < MANY
            await told(TEXTS[kind])
            await connection.wait_closed()
            assert neighbour.stdout is not None
            assert b"Host key: " in await neighbour.stdout.read()
            assert await neighbour.wait() == 0


@pytest.mark.parametrize("kind", EARLY_TEXTS)
async def test_a_flood_of_who_has_proved_nothing_ends_its_connection(
    front_door: Entrance, told: Callable[[str], Awaitable[None]], kind: str
) -> None:
    async with unproved(front_door) as connection, asyncio.timeout(DEADLINE):
        assert await pour(connection, early_flood, kind) < MANY
        await told(EARLY_TEXTS[kind])


async def test_messages_inside_of_a_key_exchange_are_counted(
    front_door: Entrance, told: Callable[[str], Awaitable[None]]
) -> None:
    """They go to asyncssh's object of the exchange, not to the connection."""
    async with unproved(front_door) as connection, asyncio.timeout(DEADLINE):
        connection._send_kexinit()
        assert await pour(connection, lambda conn, *_: conn.send_packet(MSG_KEX_LAST), "") < MANY
        await told("too many messages before authentication")


async def exchange_keys(connection: asyncssh.SSHClientConnection) -> int:
    """Again and again until the door closes the connection: how often it went well."""
    for number in range(MANY):
        connection._send_kexinit()
        connection._kexinit_sent = True
        await until(lambda: connection._kex_complete or closed(connection))
        if closed(connection):
            return number
    return MANY


async def test_key_exchanges_cannot_be_had_without_end(
    front_door: Entrance, told: Callable[[str], Awaitable[None]]
) -> None:
    async with unproved(front_door) as connection, asyncio.timeout(DEADLINE):
        assert await exchange_keys(connection) == message_limits.PREAUTH_KEY_EXCHANGES
        await told("too many key exchanges before authentication")
    connection = await connect(front_door)
    async with asyncio.timeout(DEADLINE):
        assert message_limits.KEY_EXCHANGES[1] <= await exchange_keys(connection) < MANY
        await told("too many key exchanges")


async def test_variables_are_kept_up_to_a_size(front_door: Entrance) -> None:
    """What is too much is refused, and the session goes on without it."""
    async with await connect(front_door) as connection:
        small = {f"V{number}": "x" * 100 for number in range(1000)}
        done = await connection.run("env | grep -c ^V", env=small)
        assert done.stdout == "256\n"
        large = {f"V{number}": "x" * 30_000 for number in range(10)}
        done = await connection.run("env | grep -c ^V", env=large)
        assert done.stdout == "4\n"


async def test_what_a_busy_client_does_is_no_flood(front_door: Entrance) -> None:
    """Keys exchanged for each megabyte, both ways, and many commands one after the other."""
    client = front_door.client
    data = bytes(range(256)) * (8 << 12)
    command = client.ssh("web", "-o", "RekeyLimit=1M", "cat")
    assert (await run(command, data)).stdout == data
    async with await connect(front_door) as connection:
        for _ in range(15):
            done = await asyncio.gather(*(connection.run("echo ok") for _ in range(10)))
            assert [each.stdout for each in done] == ["ok\n"] * 10
