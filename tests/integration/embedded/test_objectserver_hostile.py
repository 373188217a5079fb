"""An object server that somebody took over: what it writes reaches no other process or file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.embedded.process import start_ticks
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

USER = 982_000_000 + os.getpid()
"""Id of the user of the server. Another process of the tests has another: a start of the server
ends all processes of its user."""
PATIENCE = 60.0


@pytest.fixture
async def directory() -> AsyncIterator[Path]:
    """The directory of a server that ran and ended."""
    with tempfile.TemporaryDirectory(prefix="boxd-objects-") as name:
        place = Path(name) / "objects"
        server = EmbeddedObjectServer(place, user=USER)
        await server.start()
        await server.stop()
        yield place


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that has nothing to do with the server."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_another_process_is_not_taken_for_the_server(
    directory: Path, bystander: subprocess.Popen[bytes]
) -> None:
    state = {"pid": bystander.pid, "ticks": start_ticks(bystander.pid), "port": 1}
    (directory / "server/state.json").write_text(json.dumps(state))
    server = EmbeddedObjectServer(directory, user=USER)
    await server.stop()
    assert bystander.poll() is None
    async with asyncio.timeout(PATIENCE):
        await server.start()
    try:
        assert server.pid != bystander.pid
        assert not server.url.endswith(":1")
    finally:
        await server.stop()
    assert bystander.poll() is None


def _endless(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _directory(path: Path) -> None:
    path.mkdir()


def _large(path: Path) -> None:
    path.write_bytes(b" " * (1 << 20) + b"{}")


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def _text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


STATES = {
    "a pipe": _endless,
    "a link": _link,
    "a directory": _directory,
    "a large file": _large,
    "no JSON": _text("{"),
    "not UTF-8": _bytes(b"\xff"),
    "deep JSON": _text("[" * 3000),
    "a list": _text("[]"),
    "no members": _text("{}"),
    "a text as pid": _text('{"pid": "self", "ticks": 1, "port": 1}'),
    "a negative pid": _text('{"pid": -1, "ticks": null, "port": 1}'),
    "a huge pid": _text(f'{{"pid": {1 << 80}, "ticks": null, "port": 1}}'),
    "a path as pid": _text('{"pid": "../../etc", "ticks": null, "port": 1}'),
}


@pytest.mark.parametrize("kind", STATES)
async def test_no_state_of_a_dead_server_hinders_the_next(directory: Path, kind: str) -> None:
    STATES[kind](directory / "server/state.json")
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        async with asyncio.timeout(PATIENCE):
            if kind == "a directory":
                with pytest.raises(Unavailable):
                    await server.start()
                return
            await server.start()
        assert await server.credentials() == [("boxd-admin", "")]
    finally:
        await server.stop()


ANSWERS = {
    "no JSON": b"{\n",
    "deep JSON": b"[" * 60_000 + b"\n",
    "a list": b"[]\n",
    "no members": b"{}\n",
    "a text as keys": b'{"keys": "abc"}\n',
    "wrong rows": b'{"keys": [1]}\n',
    "an endless line": b"x" * (64 << 20),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_hostile_answer_is_an_outage(directory: Path, kind: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(ANSWERS[kind])
        writer.close()

    # A short path: names of sockets are.
    with tempfile.TemporaryDirectory() as name:
        short = Path(name) / "o"
        shutil.copytree(directory, short, ignore=shutil.ignore_patterns("admin"))
        async with await asyncio.start_unix_server(answer, short / "server/admin"):
            with pytest.raises(Unavailable):
                await EmbeddedObjectServer(short, user=USER).credentials()


async def test_the_list_of_many_credentials_is_read(directory: Path) -> None:
    """It is longer than the limit of a stream, 64 KiB."""
    keys = directory / "server/keys.json"
    rows = json.loads(keys.read_text())
    rows |= {f"{number:032x}": {"secret": "s", "prefix": "v/"} for number in range(2000)}
    keys.write_text(json.dumps(rows))
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        await server.start()
        assert len(await server.credentials()) == 2001
    finally:
        await server.stop()


LEFT = """
import fcntl, os, time
lock = os.open("lock", os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    os.setsid()
    print("held", flush=True)
    time.sleep(600)
os._exit(0)
"""


@pytest.fixture
def left(directory: Path) -> Iterator[IO[bytes]]:
    """The output of a process that holds the server's lock; its parent has ended."""
    command, pipe = ["python3", "-I", "-c", LEFT], subprocess.PIPE
    with subprocess.Popen(command, cwd=directory / "server", user=USER, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.wait()
        yield process.stdout


async def test_what_a_dead_server_left_running_ends(directory: Path, left: IO[bytes]) -> None:
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        async with asyncio.timeout(PATIENCE):
            await server.start()
    finally:
        await server.stop()
    assert left.read() == b""
