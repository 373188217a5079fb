"""Terminals through the front door: `ssh -tt` in a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.ssh.openssh import HOST, kill, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.ssh.frontdoor import Entrance

DEADLINE_S = 30.0


@dataclass
class Screen:
    """The client's side of a terminal: what it shows is collected in `seen`."""

    descriptor: int
    process: asyncio.subprocess.Process
    seen: bytes = b""
    before: bytes = b""
    """What stood before what was expected last."""

    def type(self, text: str) -> None:
        """Keys."""
        os.write(self.descriptor, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Changes the window, as a terminal emulator does."""
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def expect(self, text: str) -> None:
        """Waits until `text` is shown; what stands before it is forgotten."""
        wanted = text.encode()
        async with asyncio.timeout(DEADLINE_S):
            while wanted not in self.seen:
                self.seen += await asyncio.to_thread(os.read, self.descriptor, 65536)
        self.before, _, self.seen = self.seen.partition(wanted)

    async def status(self) -> int:
        """Exit status of `ssh`, after all it shows."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()


@asynccontextmanager
async def terminal(front_door: Entrance, user: str, *command: str) -> AsyncIterator[Screen]:
    """`ssh -tt user@host [command]` with a terminal of 90 columns and 30 rows."""
    outer, inner = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    line = ["ssh", *front_door.client.options(), "-tt", "-l", user, HOST, *command]
    environment = os.environ | {"TERM": "xterm-256color"}
    process = await asyncio.create_subprocess_exec(
        *line,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inner)
    try:
        yield Screen(outer, process)
    finally:
        kill(process)
        await process.wait()
        os.close(outer)


async def test_a_shell_has_size_type_and_follows_the_window(front_door: Entrance) -> None:
    async with terminal(front_door, "web") as screen:
        screen.type("PS1=; stty size; echo T=$TERM; tty -s && echo a-tty\n")
        await screen.expect("30 90\r\n")
        await screen.expect("T=xterm-256color\r\n")
        await screen.expect("a-tty\r\n")
        screen.resize(132, 43)
        screen.type('until [ "$(stty size)" = "43 132" ]; do sleep 0.02; done; echo re""sized\n')
        await screen.expect("resized\r\n")
        screen.type("exit 9\n")
        assert await screen.status() == 9


async def test_control_c_ends_the_command_and_not_the_shell(front_door: Entrance) -> None:
    async with terminal(front_door, "web") as screen:
        screen.type("PS1=; sh -c 'echo sta''rted; exec sleep 600'\n")
        await screen.expect("started\r\n")
        screen.type("\x03")
        screen.type("echo alive $?\n")
        await screen.expect("alive 130\r\n")
        screen.type("exit 0\n")
        assert await screen.status() == 0


async def test_a_command_with_a_terminal(front_door: Entrance) -> None:
    async with terminal(front_door, "web", "tty -s; echo tty=$?; exit 3") as screen:
        await screen.expect("tty=0\r\n")
        assert await screen.status() == 3


async def test_notes_are_on_stderr_of_commands_and_not_of_file_transfers(
    front_door: Entrance,
) -> None:
    client = front_door.client
    made = await client.run("web^400d", "echo ok")
    assert made.stdout == b"ok\n"
    assert "deadline ^400d shortened" in made.errors
    told = await client.run("web^1h", "echo ok")
    assert told.stdout == b"ok\n"
    assert "deadline ^1h ignored" in told.errors
    hello = b"\0\0\0\5\1\0\0\0\3"  # SSH_FXP_INIT, version 3
    files = await client.run("web^1h", "-s", "sftp", stdin=hello)
    assert files.stdout[4:5] == b"\2"
    assert files.stderr == b""
    again = await client.shell("web+", stdin=b"echo ok\n")
    assert again.stdout == b"ok\n"
    assert "removed the old box web" in again.errors
    assert (await client.run("web", "true")).errors == ""
    async with terminal(front_door, "web^1h", "echo ok") as screen:
        await screen.expect("^1h")
        await screen.expect("ok\r\n")
        assert await screen.status() == 0


async def test_refusals_and_text_have_whole_lines_on_a_terminal(front_door: Entrance) -> None:
    async with terminal(front_door, "we_b") as screen:
        await screen.expect("'we_b' is not valid")
        await screen.expect("\r\n")
        assert await screen.status() == 255
    async with terminal(front_door, "images") as screen:
        await screen.expect("NAME")
        await screen.expect("\r\ndebian")
        assert await screen.status() == 0


async def test_who_waits_at_a_terminal_is_told_for_what(front_door: Entrance) -> None:
    async with terminal(front_door, "web", "echo one") as screen:
        await screen.expect("creating web ...\r\none\r\n")
        assert await screen.status() == 0
    async with terminal(front_door, "web", "echo two") as screen:
        await screen.expect("two\r\n")
        assert screen.before == b"", "nobody waits for a box that runs"
    (box,) = await front_door.store.all_boxes()
    front_door.backend.kill(box.id)
    async with terminal(front_door, "session-web", "echo three") as screen:
        await screen.expect("starting web ...\r\nthree\r\n")
        assert await screen.status() == 0


async def test_who_waits_without_a_terminal_is_told_nothing(front_door: Entrance) -> None:
    client = front_door.client
    command = await client.run("one", "echo ok")
    shell = await client.shell("two", "-T", stdin=b"echo ok\n")
    for done in (command, shell):
        assert (done.status, done.text, done.errors) == (0, "ok\n", "")
    listing = ["sftp", *client.options(), "-q", "-b", "-", "-o", "User=three", HOST]
    files = await run(listing, b"pwd\n")
    assert (files.status, files.errors) == (0, "")
    assert len(await front_door.store.all_boxes()) == 3
