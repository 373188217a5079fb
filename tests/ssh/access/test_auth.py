"""Who gets in, as whom, and what a stranger can cause: nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.ssh.connection.server_connection import SESSIONS_PER_CONNECTION
from tests.harness.ssh.openssh import HOST, run, running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance


class Prober(asyncssh.SSHClient):
    """Offers key pairs one after the other."""

    def __init__(self, pairs: list[asyncssh.SSHKeyPair]) -> None:
        self._pairs = pairs
        self.offered = 0

    def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
        """The next pair."""
        if self.offered >= len(self._pairs):
            return None
        self.offered += 1
        return self._pairs[self.offered - 1]


async def connect(
    front_door: Entrance,
    user: str,
    keys: Sequence[asyncssh.SSHKey | asyncssh.SSHKeyPair | Path] | None,
    factory: Callable[[], asyncssh.SSHClient] = asyncssh.SSHClient,
) -> asyncssh.SSHClientConnection:
    """The second client, for what OpenSSH's would not do."""
    return await asyncssh.connect(
        HOST,
        front_door.door.port,
        config=None,
        username=user,
        known_hosts=None,
        agent_path=None,
        client_keys=keys,
        client_factory=factory,
        signature_algs=["ssh-ed25519", "ssh-dss"],
    )


async def test_the_owner_is_the_fingerprint_that_openssh_shows(front_door: Entrance) -> None:
    client = front_door.client
    done = await client.run("cli", "whoami")
    assert f"{client.fingerprint()}\n" in done.text
    await client.run("web", "true")
    (box,) = await front_door.store.all_boxes()
    assert box.owner == client.fingerprint()


@pytest.mark.parametrize(
    "kind",
    [
        ("-t", "ed25519"),
        ("-t", "ecdsa", "-b", "256"),
        ("-t", "ecdsa", "-b", "384"),
        ("-t", "ecdsa", "-b", "521"),
        ("-t", "rsa", "-b", "2048"),
    ],
    ids=lambda kind: "-".join(kind[1::2]),
)
async def test_safe_keys_are_identities(front_door: Entrance, kind: tuple[str, ...]) -> None:
    client = front_door.client
    key = client.make_key("other", *kind)
    done = await run(["ssh", *client.options(key), "-l", "cli", HOST, "whoami", "--json"])
    assert done.status == 0
    identity = json.loads(done.text)
    assert identity["key"] == identity["fingerprint"]


async def test_short_rsa_keys_and_dsa_are_refused(front_door: Entrance) -> None:
    client = front_door.client
    key = client.make_key("short", "-t", "rsa", "-b", "1024")
    options = ["-o", "RequiredRSASize=1024"]
    done = await run(["ssh", *client.options(key), *options, "-l", "cli", HOST, "whoami"])
    assert done.status == 255
    assert "Permission denied (publickey)" in done.errors
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(front_door, "cli", [asyncssh.generate_private_key("ssh-dss")])


async def test_a_certificate_is_no_identity(front_door: Entrance) -> None:
    """Not even one for a key that would be one by itself."""
    client = front_door.client
    authority = client.make_key("authority", "-t", "ed25519")
    key = client.make_key("certified", "-t", "ed25519")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "cli", f"{key}.pub"]
    assert (await run(sign)).status == 0
    pairs = asyncssh.load_keypairs([(str(key), f"{key}-cert.pub")])
    certificates = [pair for pair in pairs if b"cert" in pair.algorithm]
    assert certificates
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(front_door, "cli", certificates)
    async with await connect(front_door, "cli", [key]) as connection:
        assert (await connection.run("whoami")).exit_status == 0


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased", "none"])
async def test_other_methods_are_not_there(front_door: Entrance, method: str) -> None:
    options = [*front_door.client.options(), "-o", "PubkeyAuthentication=no"]
    options += ["-o", f"PreferredAuthentications={method}", "-o", "NumberOfPasswordPrompts=1"]
    done = await run(["ssh", *options, "-l", "web", HOST, "true"])
    assert done.status == 255
    assert "Permission denied (publickey)." in done.errors
    assert await front_door.store.all_boxes() == []


async def test_a_password_sent_unasked_is_refused(front_door: Entrance) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(
            HOST,
            front_door.door.port,
            config=None,
            username="web",
            password="letmein",
            known_hosts=None,
            client_keys=None,
            agent_path=None,
            preferred_auth="password",
        )
    assert await front_door.store.all_boxes() == []


async def test_a_key_probe_without_a_signature_makes_nothing(front_door: Entrance) -> None:
    """A public key whose private half the client does not have gets a "yes", and no more."""
    client = front_door.client
    stranger = client.make_key("stranger", "-t", "ed25519")
    stranger.unlink()
    command = ["ssh", *client.options(stranger), "-v", "-l", "web", HOST, "true"]
    command = [word.replace("LogLevel=ERROR", "LogLevel=DEBUG") for word in command]
    public = stranger.with_suffix(".pub")
    command = [str(public) if word == f"IdentityFile={stranger}" else word for word in command]
    done = await run(command)
    assert done.status == 255
    assert await front_door.store.all_boxes() == []


async def test_the_last_proved_pair_counts(front_door: Entrance) -> None:
    """A key that was probed, and even signed for in vain, under another name leaves no trace."""
    victim, own = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    forged = asyncssh.load_keypairs([victim])[0]
    # The client does not have the victim's private half.
    vars(forged)["sign"] = lambda data: own.sign(data, own.algorithm)

    class Switcher(Prober):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.conn = conn

        def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
            if self.offered:
                vars(self.conn)["_username"] = "cli"
            return super().public_key_auth_requested()

    switcher = Switcher([forged, asyncssh.load_keypairs([own])[0]])
    connection = await connect(front_door, "web", None, lambda: switcher)
    async with connection:
        done = await connection.run("whoami")
        assert own.get_fingerprint() in str(done.stdout)
        assert victim.get_fingerprint() not in str(done.stdout)
    assert switcher.offered == 2
    assert await front_door.store.all_boxes() == []


async def test_too_many_rejected_keys_end_the_connection(front_door: Entrance) -> None:
    prober = Prober(
        [asyncssh.load_keypairs([asyncssh.generate_private_key("ssh-dss")])[0] for _ in range(10)]
    )
    with pytest.raises(asyncssh.DisconnectError, match="too many authentication failures"):
        await connect(front_door, "web", None, lambda: prober)
    assert prober.offered == 6


async def test_what_does_not_speak_ssh_harms_nobody(front_door: Entrance) -> None:
    for data in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n" + b"\xff" * 5000,
        b"\0" * 100_000,
    ):
        reader, writer = await asyncio.open_connection(HOST, front_door.door.port)
        writer.write(data)
        writer.write_eof()
        try:
            async with asyncio.timeout(30):
                await reader.read()
        except ConnectionError:
            pass  # closed with our bytes unread: a reset
        writer.close()
        await asyncio.wait([asyncio.ensure_future(_closed(writer))])
    assert (await front_door.client.run("web", "echo ok")).stdout == b"ok\n"


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except ConnectionError:
        return


async def test_connections_without_a_key_do_not_keep_owners_out(front_door: Entrance) -> None:
    strangers = [socket.create_connection((HOST, front_door.door.port)) for _ in range(40)]
    try:
        assert (await front_door.client.run("web", "echo ok")).stdout == b"ok\n"
    finally:
        for stranger in strangers:
            stranger.close()


async def test_owners_do_not_see_each_other(front_door: Entrance) -> None:
    mine, theirs = front_door.client, front_door.new_client("theirs")
    await mine.run("web", "true")
    await theirs.run("web", "true")
    first, second = await front_door.store.all_boxes()
    assert first.owner != second.owner
    listed = (await theirs.run("cli", "ls --json")).text
    assert second.id in listed
    assert first.id not in listed
    texts = {
        (await theirs.run(f"session-{ref}", "true")).errors.replace(ref, "REF")
        for ref in (first.id, "0" * 32)
    }
    assert len(texts) == 1, texts
    texts = {
        (await theirs.run("cli", f"rm {ref}")).errors.replace(ref, "REF")
        for ref in (first.id, "0" * 32)
    }
    assert len(texts) == 1, texts
    assert len(await front_door.store.all_boxes()) == 2


async def test_a_connection_carries_ten_sessions(front_door: Entrance) -> None:
    connection = await connect(front_door, "web", [front_door.client.key])
    async with connection:
        open_ones = [await connection.create_process("cat") for _ in range(10)]
        with pytest.raises(asyncssh.ChannelOpenError, match="at most 10 sessions"):
            await connection.create_process("cat")
        for process in open_ones:
            process.stdin.write_eof()
            await process.wait()
        async with asyncio.timeout(30):
            done = await connection.run("echo room again")
        assert done.stdout == "room again\n"


async def test_a_session_that_ends_makes_room_for_the_next_message(front_door: Entrance) -> None:
    """Its end and the wish for another one come to the door at once."""
    async with front_door.client.second("web") as connection, asyncio.timeout(60):
        open_ones = [await connection.create_process("cat") for _ in range(SESSIONS_PER_CONNECTION)]
        for process in open_ones:
            process.close()
            other = await connection.create_process("cat")
            other.stdin.write(b"here\n")
            assert await other.stdout.readline() == b"here\n"
        with pytest.raises(asyncssh.ChannelOpenError, match="at most 10 sessions"):
            await connection.create_process("cat")


async def test_the_host_key_is_kept(front_door: Entrance) -> None:
    """The same key after a restart; and the client accepted it from known_hosts all along."""
    port, key = front_door.door.port, front_door.door.host_key
    async with running(front_door.client.ssh("web", "echo up; cat")) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
    assert key.startswith("ssh-ed25519 ")
    scan = await run(["ssh-keyscan", "-p", str(port), HOST])
    assert [line.split()[1:3] for line in scan.text.splitlines() if not line.startswith("#")] == [
        key.split()[:2]
    ]
