"""A restore by a CRIU and a runc that speak as the real ones do, with the relay between them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import criu_relay
from boxd.backends.checkpoint.restore_gate import Gate, Steps
from boxd.errors import BoxdError
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CRIU = """#!{python}
import os, pathlib, socket, sys
here = pathlib.Path("{here}")
connection = socket.socket(fileno=int(sys.argv[2]))
request = connection.recv(1 << 16)
if request == b"\\x08\\x0a":
    connection.send(b"answer")
    sys.exit()
def report(script, pid=b""):
    body = b"\\x0a" + bytes([len(script)]) + script + pid
    connection.send(b"\\x08\\x06\\x10\\x01\\x2a" + bytes([len(body)]) + body)
    return connection.recv(1 << 16)
(here / "request").write_bytes(request)
(here / "parent").write_text(str(os.getppid()))
report(b"pre-restore")
connected = report(b"setup-namespaces", b"\\x10\\x05")
if not connected or not report(b"post-restore", b"\\x10\\x07"):
    (here / "killed").touch()
    sys.exit(1)
(here / "ran").write_text("marked" if (here / "mark").exists() else "not marked")
connection.send(b"\\x08\\x02\\x10\\x01")
"""
RESTORE, VERSION = b"\x08\x02\x12\x00", b"\x08\x0a"
GOOD, LAST = b"\x08\x06\x18\x01", b"\x08\x02\x10\x01"


@dataclass
class Restore:
    """A gate, the program that it gives to runc, and the pids that were checked."""

    here: Path
    refuses: Exception | None = None
    checked: list[int] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        criu = self.here / "true-criu"
        criu.write_text(CRIU.format(python=sys.executable, here=self.here))
        criu.chmod(0o755)
        self.gate = Gate(self.here / "relay", Steps(self._check, self._connect))
        self.cgroup = self.here / "cgroup.procs"
        self.cgroup.touch()
        gone = self.here / "gone/cgroup.procs"
        self.program = self.gate.program(criu, self.here / "mark", [gone, self.cgroup])

    async def _connect(self, pid: int) -> None:
        self.connected.append(pid)

    async def _check(self, pid: int) -> None:
        self.checked.append(pid)
        assert not (self.here / "mark").exists()
        if self.refuses is not None:
            raise self.refuses

    @contextmanager
    def start(self, number: int = 0) -> Iterator[tuple[socket.socket, asyncio.Task[int]]]:
        """Starts the program as runc does; `number` is that of its socket, 0 for any."""
        ours, criu = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with criu, ours:
            work = _run(str(self.program), os.dup(criu.fileno()), number)
            criu.close()
            yield ours, asyncio.create_task(work)

    async def restore(self) -> tuple[list[bytes], int]:
        """What runc hears, and the exit status of CRIU."""
        loop, heard = asyncio.get_running_loop(), list[bytes]()
        await self.ask(VERSION)
        with self.start() as (runc, task):
            await loop.sock_sendall(runc, RESTORE)
            while message := await loop.sock_recv(runc, 1 << 16):
                heard.append(message)
                if message.startswith(b"\x08\x06"):
                    await loop.sock_sendall(runc, GOOD)
            return heard, await task

    async def ask(self, question: bytes, number: int = 0) -> bytes:
        """The answer to a question of runc."""
        loop = asyncio.get_running_loop()
        with self.start(number) as (runc, task):
            await loop.sock_sendall(runc, question)
            answer = await loop.sock_recv(runc, 1 << 16)
            runc.close()
            assert await task == 0
        return answer


async def _run(program: str, descriptor: int, number: int) -> int:
    """`number` is what the program shall know the descriptor by; 0 for any."""
    number = number or descriptor
    process = await asyncio.create_subprocess_exec(
        program,
        "swrk",
        str(number),
        close_fds=False,
        preexec_fn=lambda: os.set_inheritable(os.dup2(descriptor, number), True),
    )
    os.close(descriptor)
    return await process.wait()


async def test_nothing_runs_before_the_check(tmp_path: Path) -> None:
    restore = Restore(tmp_path)
    async with restore.gate.opened():
        heard, status = await restore.restore()
    assert (restore.connected, restore.checked) == ([5], [7])
    assert (restore.gate.permitted, status) == (True, 0)
    assert [b"pre-restore" in one for one in heard] == [True, False, False, False]
    assert heard[-1] == LAST
    assert (tmp_path / "request").read_bytes() == RESTORE
    assert (tmp_path / "parent").read_text() == str(os.getpid())
    assert (tmp_path / "ran").read_text() == "marked"
    assert restore.cgroup.read_text() == "0"
    assert sorted(os.listdir(tmp_path / "relay")) == ["asked", "criu"]


async def test_a_refused_box_never_runs(tmp_path: Path) -> None:
    restore = Restore(tmp_path, BoxdError("not as it must be"))
    async with restore.gate.opened():
        heard, status = await restore.restore()
    assert (len(heard), status) == (2, 1)
    assert str(restore.gate.refusal) == "not as it must be"
    assert not restore.gate.permitted
    assert (tmp_path / "killed").exists()
    assert not (tmp_path / "mark").exists()


async def test_a_box_that_died_meanwhile_is_not_refused(tmp_path: Path) -> None:
    restore = Restore(tmp_path, FileNotFoundError("/proc/7/mountinfo"))
    async with restore.gate.opened():
        assert (await restore.restore())[1] == 1
    assert (restore.gate.refusal, restore.gate.permitted) == (None, False)
    assert (tmp_path / "killed").exists()
    assert not (tmp_path / "mark").exists()


async def test_without_the_service_a_box_never_runs(tmp_path: Path) -> None:
    restore = Restore(tmp_path)
    assert (await restore.restore())[1] == 1
    assert (tmp_path / "killed").exists()
    assert not (tmp_path / "mark").exists()


async def test_a_service_that_dies_before_its_answer_permits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Restore(tmp_path)
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path / "relay")
    with listener:
        listener.bind("gate")
        listener.listen()
        listener.setblocking(False)
        work = asyncio.create_task(restore.restore())
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection.close()
        assert (await work)[1] == 1
    assert not (tmp_path / "mark").exists()


async def test_a_client_that_dies_ends_the_restore(tmp_path: Path) -> None:
    restore = Restore(tmp_path)
    await restore.ask(VERSION)
    async with restore.gate.opened():
        with restore.start() as (runc, task):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(runc, RESTORE)
            await loop.sock_recv(runc, 1 << 16)
        assert await task != 0
    await until(lambda: not restore.checked)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("number", "answer"), [(9, criu_relay.version(4, 3)), (12, b"answer")])
async def test_the_first_question_for_the_version(
    tmp_path: Path, number: int, answer: bytes
) -> None:
    restore = Restore(tmp_path)
    assert await restore.ask(VERSION, number) == answer
    assert await restore.ask(VERSION, number) == b"answer"


async def test_a_runc_that_does_not_ask_restores_nothing(tmp_path: Path) -> None:
    assert await Restore(tmp_path).ask(RESTORE, 9) == criu_relay.version(4, 3)
    assert not (tmp_path / "request").exists()


@pytest.mark.parametrize(
    ("message", "pid"),
    [
        (b"\x08\x06\x10\x01\x2a\x0d\x0a\x0bpre-restore", None),
        (b"\x08\x06\x10\x01\x2a\x0e\x0a\x0cpost-restore", 0),
        (b"\x08\x06\x10\x01\x2a\x11\x0a\x0cpost-restore\x10\xd3\x1e", 3923),
        (b"\x08\x06\x10\x01\x2a\x10\x0a\x0enetwork-unlock", 0),
        (b"\x08\x06\x10\x01\x2a\x09\x0a\x07unknown", 0),
        (b"\x08\x02\x10\x01", 0),
        (b"\x08\x02\x10\x00\x38\x05", None),
    ],
)
def test_what_needs_a_permission(message: bytes, pid: int | None) -> None:
    assert criu_relay.needs_permission(message) == pid


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x0a\x05abc", b"\x0b", b"\x08" + b"\xff" * 11, b"\x09\x00"]
)
def test_what_is_no_message(message: bytes) -> None:
    with pytest.raises(criu_relay.Malformed):
        criu_relay.fields(message)


@pytest.mark.parametrize(
    ("request_", "question"),
    [(VERSION, True), (b"\x08\x09\x42\x00", True), (VERSION + b"\x20\x01", False)],
)
def test_questions(request_: bytes, question: bool) -> None:
    """One that keeps the connection open may be followed by a restore."""
    assert criu_relay.is_question(request_) is question
    assert not criu_relay.is_question(RESTORE)
    assert not criu_relay.is_question(VERSION + RESTORE)
