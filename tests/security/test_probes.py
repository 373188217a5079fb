"""What a client learns that offers keys and proves none: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
from asyncssh.constants import (
    MSG_USERAUTH_FAILURE,
    MSG_USERAUTH_REQUEST,
    MSG_USERAUTH_SUCCESS,
)
from asyncssh.packet import Boolean, Byte, String

from boxd.observation import UNOBSERVED
from tests.harness.wait import until
from tests.security.clients import unproved

if TYPE_CHECKING:
    import pytest
    from asyncssh.packet import SSHPacket

    from tests.harness.ssh.frontdoor import Entrance

PK_OK = 60
"""The answer to an offer of a key: its signature would do."""
USERS = ("web", "absent", "session-{box}", "session-00", "cli", "images", "sudo", "jump", "svcs_0")


class Untouchable:
    """Stands where the operations are: who asks it for anything else fails the test."""

    def __init__(self, **allowed: object) -> None:
        vars(self).update(allowed)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a probe asked for {name}")


class Listener:
    """Stands where the client's own authentication is, and keeps what the door says."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def process_packet(self, kind: int, _: int, packet: SSHPacket) -> bool:
        if kind in (PK_OK, MSG_USERAUTH_FAILURE, MSG_USERAUTH_SUCCESS):
            self.answers.append((kind, packet.get_full_payload()))
        return True

    def log_received_packet(self, *_: object) -> None:
        pass

    def cancel(self) -> None:
        pass


async def answer(
    connection: asyncssh.SSHClientConnection, user: str, key: asyncssh.SSHKey
) -> tuple[int, bytes]:
    """What the door says to an offer of the key without a signature."""
    offer = _request(user, "publickey") + Boolean(False)
    return await answer_to(connection, offer + String(key.algorithm) + String(key.public_data))


async def answer_to(connection: asyncssh.SSHClientConnection, request: bytes) -> tuple[int, bytes]:
    """What the door says to a request for authentication."""
    listener = Listener()
    vars(connection)["_auth"] = listener
    vars(connection)["process_packet"] = listener.process_packet
    connection.send_packet(MSG_USERAUTH_REQUEST, request)
    await until(lambda: listener.answers)
    return listener.answers[0]


async def test_a_probe_tells_nothing_and_asks_nothing(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the key, the user or the box is known: byte for byte the same answer."""
    client = front_door.client
    assert (await client.run("web", "true")).status == 0
    (box,) = await front_door.store.all_boxes()
    known = asyncssh.read_public_key(client.key.with_suffix(".pub"))
    unknown = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
    # Which account a key opens is in memory, and figures about SSH are reported; nothing else.
    callers = Untouchable(account_keys=front_door.operations.callers.account_keys)
    operations = Untouchable(callers=callers, observer=UNOBSERVED)
    monkeypatch.setattr(front_door.door._state, "operations", operations)
    for key in (known, unknown):
        expected = String(key.algorithm) + String(key.public_data)
        async with unproved(front_door) as connection:
            for user in USERS:
                kind, payload = await answer(connection, user.format(box=box.id), key)
                assert (kind, payload[1:]) == (PK_OK, expected), user
    assert await front_door.store.all_boxes() == [box]


async def test_a_proof_for_administrators_is_refused_as_an_unknown_method(
    front_door: Entrance,
) -> None:
    """Whose key it is, whether the signature was good: byte for byte the same answer."""
    good = asyncssh.generate_private_key("ssh-ed25519")
    administrator = asyncssh.generate_private_key("ssh-ed25519")
    front_door.administrators.add(administrator.get_fingerprint("sha256"))
    async with unproved(front_door) as connection:
        unknown = await answer_to(connection, _request("sudo", "unknown"))
        assert unknown[0] == MSG_USERAUTH_FAILURE
        for key, signer in ((good, good), (good, administrator), (administrator, good)):
            proof = _proof(connection, "sudo", key, signer)
            assert await answer_to(connection, proof) == unknown
        proof = _proof(connection, "sudo", administrator, administrator)
        assert (await answer_to(connection, proof))[0] == MSG_USERAUTH_SUCCESS


def _request(user: str, method: str) -> bytes:
    return String(user) + String("ssh-connection") + String(method)


def _proof(
    connection: asyncssh.SSHClientConnection,
    user: str,
    key: asyncssh.SSHKey,
    signer: asyncssh.SSHKey,
) -> bytes:
    """A signed request with a key; only its own signature is good."""
    asked = _request(user, "publickey") + Boolean(True) + String(key.algorithm)
    asked += String(key.public_data)
    session = String(connection._session_id)
    signature = signer.sign(session + Byte(MSG_USERAUTH_REQUEST) + asked, key.algorithm)
    return asked + String(signature)


async def test_a_refused_kind_of_key_tells_nothing_either(front_door: Entrance) -> None:
    assert (await front_door.client.run("web", "true")).status == 0
    short = asyncssh.generate_private_key("ssh-rsa", key_size=1024).convert_to_public()
    seen = set()
    for user in ("web", "absent", "sudo"):
        async with unproved(front_door) as connection:
            seen.add(await answer(connection, user, short))
    assert [kind for kind, _ in seen] == [MSG_USERAUTH_FAILURE]
