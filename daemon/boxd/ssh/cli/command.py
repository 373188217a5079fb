"""What a command of the management CLI is."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from boxd.errors import BadRequest
from boxd.names.jump import UNNAMED, named, spelled
from boxd.names.nearest import did_you_mean
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_STDIN = 64 * 1024
"""Bytes of input that a command takes as a whole."""
SHORT_ID = 12
"""Digits of an id that are shown."""
_HELP = frozenset({"--help", "-h"})
USAGE = 2
"""Exit status of a command line that makes no sense."""


class UsageError(BadRequest):
    """The command line makes no sense; the text says how it is written."""

    exit_status = USAGE


@dataclass(frozen=True, slots=True)
class Result:
    """Output of a command. Text ends in a newline unless it is empty."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command has to say: `document` for `--json`, `text` for people, each `notes` one line.

    `failures` are refusals of single arguments; with one the command exits 1.
    """

    document: Any
    text: str
    notes: Sequence[str] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Of a command that wrote its output itself, through `Call.stdio`: its exit status."""

    status: int = 0


class Stdio(Protocol):
    """Input and output of one call, as bytes. Both ends wait for each other."""

    terminal: bool
    """A person types and reads."""

    async def read(self) -> bytes:
        """What has come, and at least one byte; b"" at the end of input."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends output, when the client has read what was sent before. Dropped once it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """Where the client reached us: what goes into examples and configurations.

    `host_key` is the public key of the server, one line in OpenSSH form, `fingerprint` its own.
    Ports of boxes answer below `preview_domain`; None: nowhere but below the HTTP API.
    """

    host: str
    port: int
    fingerprint: str
    host_key: str
    preview_domain: str | None = None

    def preview(self, box_id: str) -> str | None:
        """The host of a port of a box, which `PORT` stands for; None: there are no such hosts."""
        return self.preview_domain and f"{box_id[:SHORT_ID]}-PORT.{self.preview_domain}"

    def ssh(self, user: str, *words: str) -> str:
        """A command line for this front door; `^`, `+` and the like are quoted for the shell."""
        plain = user.replace("-", "").replace("_", "").isalnum()
        quoted = user if plain else f"'{user}'"
        port = "" if self.port == 22 else f"-p {self.port} "
        return " ".join([f"ssh {port}{quoted}@{self.host}", *words])

    def box(self, ref: str, *, confidential: bool) -> str:
        """A command line that leads into a box."""
        return self.named(f"ssh -J {UNNAMED} root@{ref}") if confidential else self.ssh(ref)

    def named(self, text: str) -> str:
        """An error text that shows the way into a confidential box (`Box.relayed`), with this front
        door in it."""
        return named(text, self.host, self.port)

    def spelled(self, text: str) -> str:
        """An error text that ends in a command of the CLI, for who is not in the CLI."""
        return spelled(text, self.ssh("cli"))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command: who, with what, where, when."""

    principal: Principal
    operations: Operations
    door: Door
    now: datetime
    stdio: Stdio
    console: Console
    args: argparse.Namespace

    async def stdin(self) -> bytes:
        """All of the input, for values that must not stand in a command line.

        UsageError on a terminal, which would show it, and beyond MAX_STDIN bytes.
        """
        if self.stdio.terminal:
            raise UsageError("this is read from standard input: use a pipe or a file, without -t")
        whole = bytearray()
        while data := await self.stdio.read():
            whole += data
            if len(whole) > MAX_STDIN:
                raise UsageError(f"standard input is longer than {MAX_STDIN} bytes")
        return bytes(whole)


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `words` are what is typed, `about` one line, `example` what follows `cli@host`."""

    words: tuple[str, ...]
    about: str
    example: str
    run: Callable[[Call], Awaitable[Reply | Ended]]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(self.words)

    def parser(self) -> argparse.ArgumentParser:
        """A fresh parser of what follows the words."""
        parser = _Parser(prog=self.name, add_help=False, allow_abbrev=False)
        self.arguments(parser)
        parser.add_argument("--json", action="store_true")
        return parser

    @property
    def synopsis(self) -> str:
        """`name ARGUMENT [--option]`."""
        return " ".join(self.parser().format_usage().removeprefix("usage: ").split())


@dataclass(frozen=True, slots=True)
class Console:
    """All commands that there are for one user name, in the order in which help shows them."""

    user: str
    commands: tuple[Command, ...]

    def find(self, words: Sequence[str]) -> tuple[Command, Sequence[str]]:
        """The command that words begin with, the longest one, and what follows. UsageError."""
        if not _HELP.isdisjoint(itertools.takewhile(lambda word: word != "--", words)):
            words = ["help", *self._named(words)]
        fitting = [one for one in self.commands if tuple(words[: len(one.words)]) == one.words]
        if fitting:
            command = max(fitting, key=lambda one: len(one.words))
            return command, words[len(command.words) :]
        family = [one.name for one in self.commands if one.words[0] == words[0]]
        if family:
            nearest = did_you_mean(" ".join(words[:2]), family)
            raise UsageError(f"{words[0]} needs one of: {', '.join(family)}{nearest}")
        raise UsageError(self.no_command(words[0]))

    def no_command(self, typed: str) -> str:
        """The error text for words that begin no command."""
        known = dict.fromkeys(word for one in self.commands for word in (one.words[0], one.name))
        return f"there is no command {shown(typed)}{did_you_mean(typed, known)}; see: help"

    def _named(self, words: Sequence[str]) -> list[str]:
        """What is asked about with `--help`: as many words as begin a command, at least the first
        that is none itself of _HELP."""
        asked = [word for word in words if word not in _HELP]
        begun = [
            count
            for count in range(1, len(asked) + 1)
            if any(one.words[:count] == tuple(asked[:count]) for one in self.commands)
        ]
        return asked[: max(begun, default=1)]


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing and leaving."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise UsageError(f"{message}; usage: {usage}")


def workspace_option(parser: argparse.ArgumentParser) -> None:
    """`-w WS`: another default workspace of the call."""
    parser.add_argument("-w", dest="ws", metavar="WS")
