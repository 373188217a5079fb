"""OpenSSH's client tools with their own key, configuration and known hosts.

A second client is asyncssh with the same key.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncssh

from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOST = "127.0.0.1"
RUN_S = 60.0
LISTENING = "00010000"
"""The flag of a listening Unix socket."""


@dataclass(frozen=True)
class Done:
    """The end of a program."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return stdout as text."""
        return self.stdout.decode()

    @property
    def errors(self) -> str:
        """Return stderr as text."""
        return self.stderr.decode()


@dataclass
class Client:
    """One user: a directory with a new ed25519 key, and the expected host key."""

    directory: Path
    port: int
    host_key: str
    key: Path = field(init=False)
    log_level: str = "ERROR"

    def __post_init__(self) -> None:
        self.directory.mkdir(mode=0o700)
        self.key = self.make_key("key", "-t", "ed25519")
        known = self.directory / "known_hosts"
        known.write_text(f"[{HOST}]:{self.port} {self.host_key}\n")

    def make_key(self, name: str, *kind: str) -> Path:
        """Create another key in the client's directory."""
        path = self.directory / name
        command = ["ssh-keygen", "-q", "-N", "", "-C", name, "-f", str(path), *kind]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def fingerprint(self) -> str:
        """Return `SHA256:...` of the key, as OpenSSH prints it."""
        command = ["ssh-keygen", "-l", "-E", "sha256", "-f", str(self.key)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True)
        return listed.stdout.split()[1]

    def options(self, key: Path | None = None) -> list[str]:
        """Return the options of every tool, which ignore the machine's own configuration."""
        settings = [
            f"UserKnownHostsFile={self.directory / 'known_hosts'}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            f"IdentityFile={key or self.key}",
            "BatchMode=yes",
            f"LogLevel={self.log_level}",
            f"Port={self.port}",
        ]
        return ["-F", "none", *(word for setting in settings for word in ("-o", setting))]

    def ssh(self, user: str, *words: str) -> list[str]:
        """Return the command line of `ssh`; words before the remote command are options."""
        return ["ssh", *self.options(), "-l", user, *words[:-1], HOST, *words[-1:]]

    async def run(self, user: str, *words: str, stdin: bytes = b"") -> Done:
        """Run `ssh user@host command` to its end."""
        return await run(self.ssh(user, *words), stdin)

    async def shell(self, user: str, *options: str, stdin: bytes = b"") -> Done:
        """Run `ssh user@host` without a command to its end."""
        return await run(["ssh", *self.options(), "-l", user, *options, HOST], stdin)

    def hop(self, key: Path | None = None) -> list[str]:
        """Return the options with which any tool uses `-J jump@...`; only the target gets `key`.

        The client knows the front door's key, and accepts the key of the target's own server.
        """
        own = ["ssh", *self.options(), "-l", "jump", "-W", "[%h]:%p", HOST]
        settings = [
            f"ProxyCommand={shlex.join(own)}",
            f"UserKnownHostsFile={self.relays}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            f"IdentityFile={key or self.key}",
            "BatchMode=yes",
            f"LogLevel={self.log_level}",
            "User=root",
        ]
        return ["-F", "none", *(word for setting in settings for word in ("-o", setting))]

    @property
    def relays(self) -> Path:
        """Return the path of the host keys that targets of `-J` have presented."""
        return self.directory / "known_relays"

    def jump(self, target: str, *words: str, key: Path | None = None) -> list[str]:
        """Return the command line of `ssh -J jump@... root@target`.

        The words are those of `ssh`, and `key` is that of `hop`.
        """
        return ["ssh", *self.hop(key), *words[:-1], target, *words[-1:]]

    @asynccontextmanager
    async def second(
        self, user: str, **options: object
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Open a connection of asyncssh, for actions that OpenSSH's client never takes.

        The context cuts it at the end. It reads nothing of the machine's own configuration.
        """
        settings: dict[str, Any] = {
            "config": None,
            "username": user,
            "known_hosts": None,
            "agent_path": None,
            "client_keys": [str(self.key)],
            "encoding": None,
            **options,
        }
        connection = await asyncssh.connect(HOST, self.port, **settings)
        try:
            yield connection
        finally:
            connection.abort()
            await connection.wait_closed()

    @asynccontextmanager
    async def master(self, user: str, *options: str) -> AsyncIterator[list[str]]:
        """Open a shared connection; yield the options that use it."""
        path = self.directory / "m"
        command = ["ssh", *self.options(), "-l", user, "-M", "-S", str(path), "-N", *options, HOST]
        async with running(command):
            await until(path.is_socket)  # It gets this name only after it listens.
            yield ["-S", str(path)]
        path.unlink(missing_ok=True)


def listens(path: Path) -> bool:
    """Return whether a process listens on a Unix socket; the file may exist a moment earlier."""
    with open("/proc/net/unix") as table:
        ends = (line.split() for line in table)
        return any(words[3] == LISTENING and words[-1] == str(path) for words in ends)


async def run(command: list[str], stdin: bytes = b"", deadline: float = RUN_S) -> Done:
    """Run a program to its end."""
    async with running(command) as process, asyncio.timeout(deadline):
        stdout, stderr = await process.communicate(stdin)
        assert process.returncode is not None
        return Done(process.returncode, stdout, stderr)


@asynccontextmanager
async def running(command: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program with pipes; kill it at the end if it still runs."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        kill(process)
        if process.stdin is not None:
            process.stdin.close()
            # A program that ends without reading its input breaks the pipe. Asyncio would log that.
            with suppress(BrokenPipeError, ConnectionResetError):
                await process.stdin.wait_closed()
        # This reads the remaining data, so that the transports of the pipes close.
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                await stream.read()
        await process.wait()


def kill(process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill a program that may already have ended, or send it another signal.

    `Process.kill` would reap the program itself. Then asyncio, which waits for the same program,
    finds no such child and warns.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def end_input(process: asyncio.subprocess.Process) -> None:
    """Close a program's input and wait for its end with status 0.

    The master of a shared connection notices a killed `ssh` only with the next packet.
    """
    assert process.stdin is not None
    process.stdin.close()
    async with asyncio.timeout(RUN_S):
        assert await process.wait() == 0
