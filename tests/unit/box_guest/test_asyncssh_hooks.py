"""Parts of asyncssh that we put ours in front of: a release that calls others shows here.

asyncssh is pinned. Who raises the pin reads what these tests say: each tells what stands there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import asyncssh
import pytest
from asyncssh.connection import SSHConnection
from asyncssh.constants import MSG_IGNORE, MSG_KEXINIT
from asyncssh.encryption import get_encryption, get_encryption_params

from box_guest.shared.command_bytes import take_any_command
from box_guest.shared.wire import _IMMUNE, send_no_padding
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from asyncssh.channel import SSHChannel

PIECE = 1 << 15
P = ParamSpec("P")
R = TypeVar("R")


class Spy(asyncssh.SSHServer):
    """Counts calls of a connection's and its channels' methods by their names."""

    CONNECTION = (
        "pause_writing",
        "resume_writing",
        "send_packet",
        "add_channel",
        "remove_channel",
        "process_packet",
        "_send_kexinit",
        "send_newkeys",
    )
    CHANNEL = ("_flush_send_buf", "_pause_resume_writing", "process_packet")

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.kinds: Counter[int] = Counter()
        self.connection: asyncssh.SSHServerConnection
        self.session = Session()

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn
        assert conn._transport is not None, "there is no transport yet when its owner is told"
        conn._transport.set_write_buffer_limits(high=PIECE)
        for name in self.CONNECTION:
            vars(conn)[name] = self.counted(name, getattr(conn, name))
        add = conn.add_channel

        def added(channel: SSHChannel[bytes]) -> int:
            assert channel._send_buf_len == 0
            for name in self.CHANNEL:
                vars(channel)[name] = self.counted(f"channel.{name}", getattr(channel, name))
            return add(channel)

        vars(conn)["add_channel"] = added

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> tuple[asyncssh.SSHServerChannel[bytes], Session]:
        chan = self.connection.create_server_channel()
        take_any_command(chan)
        return chan, self.session

    def counted(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        """The same method, and counted."""

        def counting(*arguments: P.args, **named: P.kwargs) -> R:
            self.calls[name] += 1
            if name == "send_packet" and isinstance(arguments[0], int):
                self.kinds[arguments[0]] += 1
            return call(*arguments, **named)

        return counting


class Session(asyncssh.SSHServerSession[bytes]):
    """Keeps its command."""

    def __init__(self) -> None:
        self.command = ""
        self.chan: asyncssh.SSHServerChannel[bytes]

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self.chan = chan

    def exec_requested(self, command: str) -> bool:
        self.command = command
        return True


@pytest.fixture
async def spy() -> AsyncIterator[Spy]:
    """A connection with a session, watched."""
    watching = Spy()
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: watching,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        encoding=None,
        line_editor=False,
        config=None,
        gss_host=None,
    )
    client = await asyncssh.connect(
        "127.0.0.1",
        listener.get_port(),
        known_hosts=None,
        config=None,
        client_keys=None,
        agent_path=None,
        gss_host=None,
    )
    await client.create_session(asyncssh.SSHClientSession, cast("str", b"x\xff"), encoding=None)
    yield watching
    for end in (client, watching.connection):
        end.abort()
        await end.wait_closed()
    listener.close()
    await listener.wait_closed()


async def test_the_transport_asks_the_connection_to_pause_and_asyncssh_does_nothing(
    spy: Spy,
) -> None:
    for name in ("pause_writing", "resume_writing"):
        code = inspect.getsource(getattr(SSHConnection, name)).partition('"""')[2]
        assert code.partition('"""')[2].strip() == "# Do nothing with this for now"
    for _ in range(16):
        spy.session.chan.write(bytes(PIECE))
    while not spy.calls["pause_writing"]:
        spy.connection.send_packet(MSG_IGNORE, asyncssh.packet.String(bytes(PIECE)))
    await until(lambda: spy.calls["resume_writing"])


async def test_writing_goes_through_the_channels_two_steps(spy: Spy) -> None:
    before = spy.calls.copy()
    spy.session.chan.write(b"x")
    made = spy.calls - before
    assert made["channel._flush_send_buf"] == 1
    assert made["channel._pause_resume_writing"] == 1
    assert spy.session.chan in spy.connection._channels.values()
    assert spy.session.chan._session is spy.session
    assert spy.session.chan._send_paused == 0
    before = spy.calls.copy()
    spy.session.chan.write_eof()
    assert (spy.calls - before)["channel._flush_send_buf"] == 1


async def test_every_message_passes_what_the_meters_stand_at(spy: Spy) -> None:
    assert spy.calls["process_packet"]
    assert spy.calls["channel.process_packet"]


async def test_keys_are_made_between_two_calls_and_keep_messages_meanwhile(spy: Spy) -> None:
    assert spy.connection._session_id
    before = spy.calls.copy()
    spy.connection._send_kexinit()
    spy.connection._kexinit_sent = True
    assert not spy.connection._kex_complete
    spy.session.chan.write(b"x")
    assert len(spy.connection._deferred_packets) == 1
    await until(lambda: spy.calls["send_newkeys"] > before["send_newkeys"])
    await until(lambda: spy.connection._kex_complete)
    assert spy.connection._deferred_packets == []
    assert spy.kinds[MSG_KEXINIT] == 2


async def test_the_other_sides_new_keys_call_the_same(spy: Spy) -> None:
    before = spy.calls.copy()
    # As when its limit of bytes is reached.
    spy.connection._rekey_bytes_sent = spy.connection._rekey_bytes
    spy.session.chan.write(b"x")
    await until(lambda: spy.calls["send_newkeys"] > before["send_newkeys"])
    assert (spy.calls - before)["_send_kexinit"] == 1


async def test_empty_packets_are_sent_through_the_same_method_and_can_be_left_out(
    spy: Spy,
) -> None:
    before = spy.kinds[MSG_IGNORE]
    spy.session.chan.write(b"x")
    assert spy.kinds[MSG_IGNORE] == before + 1, (
        "asyncssh sends none: box_guest.shared.wire is not needed"
    )
    sent = spy.connection._send_seq
    send_no_padding(spy.connection)
    spy.session.chan.write(b"x")
    assert spy.connection._send_seq == sent + 1


def test_which_ciphers_are_immune() -> None:
    def kind(cipher: bytes, mac: bytes) -> type:
        key_size, iv_size, _, mac_size, _, etm = get_encryption_params(cipher, mac)
        made = get_encryption(cipher, bytes(key_size), bytes(iv_size), mac, bytes(mac_size), etm)
        return type(made)

    for cipher in (b"chacha20-poly1305@openssh.com", b"aes128-gcm@openssh.com"):
        assert issubclass(kind(cipher, b""), _IMMUNE)
    assert issubclass(kind(b"aes256-ctr", b"hmac-sha2-256-etm@openssh.com"), _IMMUNE)
    assert not issubclass(kind(b"aes256-cbc", b"hmac-sha2-256"), _IMMUNE)


async def test_a_command_reaches_its_session_through_the_handler_that_we_put_there(
    spy: Spy,
) -> None:
    assert spy.session.command == "x\udcff"


async def test_a_connection_can_be_closed_with_a_reason(spy: Spy) -> None:
    lost: list[Exception | None] = []
    vars(spy)["connection_lost"] = lost.append
    spy.connection._force_close(asyncssh.ProtocolError("reason"))
    await asyncio.sleep(0)
    await until(lambda: lost)
    assert str(lost[0]) == "reason"
