"""Commands that are handed variables in secret, through a real agent; and agents that do not act
as they are meant to."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import asyncssh
import pytest

from box_guest import protocol
from box_guest.shared import frames
from box_guest.shared.sealing import Opener, seal
from boxd.boxes.commands import handover
from boxd.boxes.commands.exec import ExecRequest, running
from boxd.boxes.commands.handover import running_with
from boxd.errors import Unavailable
from boxd.secret import Secret
from boxd.tunnel import channel
from tests.harness.agents.agent import local_agent
from tests.harness.agents.impostor import GREETING, Impostor, dial, host_key
from tests.harness.memory import times_in_memory
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.boxes.commands.exec import ExecRun
    from tests.harness.agents.agent import LocalBox

MARK = "canary-token-that-is-handed-over"
OWN = {"TOKEN": Secret(MARK)}


async def outcome(run: ExecRun, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit code and both streams."""
    said = {"stdout": bytearray(), "stderr": bytearray()}

    async def keep(stream: str, data: bytes) -> None:
        said[stream] += data

    if stdin:
        await run.write(stdin)
    run.write_eof()
    code = await run.pump(keep)
    return code, bytes(said["stdout"]), bytes(said["stderr"])


async def test_the_command_is_as_any_other(local_box: LocalBox) -> None:
    tunnel = await local_box.tunnel()
    env = {"A": "beneath", "B": "session's", "LD_LIBRARY_PATH": "/nothing"}
    show = 'echo "$FROM_IMAGE $A $B $LD_LIBRARY_PATH $TOKEN" >&2; pwd; umask; cat; exit 3'
    request = ExecRequest(show, {"A": "request's"})
    stdin = b"\0\n" * (1 << 19)
    async with running_with(tunnel, request, env, OWN) as run:
        code, out, errors = await outcome(run, stdin)
    async with running(tunnel, request, env | {"TOKEN": MARK}) as run:
        assert await outcome(run, stdin) == (code, out, errors)
    assert (code, errors) == (3, f"yes request's session's /nothing {MARK}\n".encode())
    assert out.endswith(stdin)
    async with running_with(tunnel, ExecRequest("kill -TERM $$"), {}, OWN) as run:
        assert (await outcome(run))[0] == 143
    async with running_with(tunnel, ExecRequest("x" * 100_000), {}, OWN) as run:
        assert (await outcome(run))[0] == 127


async def test_many_environments_fit(local_box: LocalBox) -> None:
    """More than a pipe holds at once."""
    env = {f"V{number}": "v" * 30_000 for number in range(8)}
    tunnel = await local_box.tunnel()
    async with running_with(tunnel, ExecRequest("env | wc -c; cat"), env, OWN) as run:
        code, out, _ = await outcome(run, b"in")
    assert code == 0
    assert int(out.split()[0]) > 240_000
    assert out.endswith(b"in")


async def test_the_agent_has_never_had_it(local_box: LocalBox) -> None:
    """In its memory, while the command runs and afterwards. A usual command shows that one who
    looks there would find it."""
    assert local_box.process is not None
    agent, tunnel = local_box.process.pid, await local_box.tunnel()
    show = ExecRequest("echo $$; read -r line; exit 0")
    for number, beside in enumerate(("usual", "secret")):
        mark = f"{MARK}-{beside}"
        begun = (
            running(tunnel, show, {"TOKEN": mark})
            if beside == "usual"
            else running_with(tunnel, show, {}, {"TOKEN": Secret(mark)})
        )
        pids: list[int] = []

        async def told(_stream: str, data: bytes, pids: list[int] = pids) -> None:
            pids.append(int(data))

        async with begun as run:
            work = asyncio.create_task(run.pump(told))
            await until(partial(len, pids))
            assert times_in_memory(pids[0], mark.encode()) > 0
            assert (times_in_memory(agent, mark.encode()) == 0) == bool(number)
            await run.write(b"on\n")
            assert await work == 0
        if number:
            assert times_in_memory(agent, mark.encode()) == 0


# --- agents that do not act as they are meant to ------------------------------------------


@pytest.fixture
async def quiet_box() -> AsyncIterator[LocalBox]:
    """A box whose agent is not started."""
    async with local_agent() as box:
        yield box


class OtherAgent(Impostor):
    """An agent whose sessions but the control channel are `session`."""

    def __init__(self, session: type[Handing]) -> None:
        super().__init__([GREETING])
        self._session = session
        self._first = True

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        first, self._first = self._first, False
        return self.control if first else self._session()


class Handing(asyncssh.SSHServerSession[bytes]):
    """What a box says in the place of a greeting."""

    says: bytes = b""
    complains: bytes = b""
    ends = True

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == protocol.HANDOVER_SUBSYSTEM

    def session_started(self) -> None:
        self._chan.write(self.says)
        self._chan.write_stderr(self.complains)
        if self.ends:
            self._chan.exit(1)


class Old(Handing):
    """Knows nothing of it."""

    def subsystem_requested(self, subsystem: str) -> bool:
        return False


def handing(says: bytes, complains: bytes = b"", *, ends: bool = False) -> type[Handing]:
    """A session that says something."""
    return type("Said", (Handing,), {"says": says, "complains": complains, "ends": ends})


@contextlib.asynccontextmanager
async def other_agent(box: LocalBox, session: type[Handing]) -> AsyncIterator[None]:
    """It is there, and no other."""
    connection = await dial(box.run_dir, host_key(box), OtherAgent(session))
    try:
        yield
    finally:
        connection.abort()
        await connection.wait_closed()


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (Old, "by an earlier version of the service.*new box"),
        (handing(b"", ends=True), "hand a token to the box: it ended with exit code 1"),
        (
            handing(b"", b"no \x1b[2J memory\n", ends=True),
            r"hand a token to the box: no  \[2J memory$",
        ),
        (handing(b"x" * frames.GREETING_SIZE), "something other than its key; try again"),
        (handing(frames.greeting(bytes(range(32))) + b"x"), "something other than its key"),
        (handing(frames.greeting(bytes(32))), "broke the protocol"),
        (handing(b"x" * 1_000_000), "something other than its key"),
    ],
)
async def test_an_agent_of_another_kind_is_named(
    quiet_box: LocalBox, session: type[Handing], text: str
) -> None:
    async with other_agent(quiet_box, session):
        tunnel = await quiet_box.tunnel()
        with pytest.raises(Unavailable, match=text):
            async with running_with(tunnel, ExecRequest("true"), {}, OWN):
                pytest.fail("nothing runs")


async def test_an_agent_that_says_nothing_is_not_waited_for(
    quiet_box: LocalBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "HANDOVER_S", 0.1)
    async with other_agent(quiet_box, handing(frames.greeting(bytes(32))[:-1])):
        tunnel = await quiet_box.tunnel()
        with pytest.raises(Unavailable, match=r"did not start within 0\.1 s; try again"):
            async with running_with(tunnel, ExecRequest("true"), {}, OWN):
                pytest.fail("nothing runs")


class Full(channel.Exec):
    """A command whose tunnel takes nothing more, as one whose socket is full."""

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        super().connection_made(chan)
        self.pause_writing()


async def test_a_box_that_does_not_take_it_is_not_waited_for(
    quiet_box: LocalBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sealed(text: bytes, public: bytes, *, purpose: str, box_id: str) -> bytes:
        # Not before: until here the box has all its time.
        monkeypatch.setattr(handover, "HANDOVER_S", 0.1)
        return seal(text, public, purpose=purpose, box_id=box_id)

    monkeypatch.setattr(handover, "seal", sealed)
    monkeypatch.setattr(channel, "Exec", Full)
    key = Opener().public
    async with other_agent(quiet_box, handing(frames.greeting(key))):
        tunnel = await quiet_box.tunnel()
        with pytest.raises(Unavailable, match=r"did not accept the token within 0\.1 s"):
            async with running_with(tunnel, ExecRequest("true"), {}, OWN):
                pytest.fail("nothing runs")


async def test_a_tunnel_that_goes_down_meanwhile_is_told(quiet_box: LocalBox) -> None:
    async with other_agent(quiet_box, handing(b"")):
        tunnel = await quiet_box.tunnel()

        async def begin() -> None:
            async with running_with(tunnel, ExecRequest("true"), {}, OWN):
                pytest.fail("nothing runs")

        work = asyncio.create_task(begin())
        await asyncio.sleep(0)
        await tunnel.close()
        with pytest.raises(Unavailable):
            await work
