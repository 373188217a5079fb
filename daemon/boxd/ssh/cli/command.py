"""Commands of a console: their definitions, their calls and their results."""

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
"""Maximum size of input that a command reads as a whole, in bytes."""
SHORT_ID = 12
"""Digits of an id in tables and texts."""
_HELP = frozenset({"--help", "-h"})
USAGE_STATUS = 2
"""Exit status of an invalid command line."""


class UsageError(BadRequest):
    """The command line is invalid; the text shows the correct syntax."""

    exit_status = USAGE_STATUS


@dataclass(frozen=True, slots=True)
class Result:
    """Output of a command. Text ends in a newline unless it is empty."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a command: `document` for `--json`, `text` for people, `notes` for stderr.

    Each note is one line. `failures` are errors of single arguments; with one the status is 1.
    """

    document: Any
    text: str
    notes: Sequence[str] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The result of a command that wrote its output itself, through `Call.stdio`."""

    status: int = 0


class Stdio(Protocol):
    """Input and output of one call, as bytes, with back-pressure in both directions."""

    terminal: bool
    """A person types the input and reads the output."""

    async def read(self) -> bytes:
        """Wait for input and return all of it; return b"" at its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send output once the client accepts more; drop it after the client has disconnected."""
        ...

    async def write_error(self, data: bytes) -> None:
        """Send bytes to standard error, like `write`."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the SSH server, as examples and configurations show it.

    `host_key` is the public key of the server, one line in OpenSSH form; `fingerprint` is that of
    the key. Ports of boxes have hosts below `preview_authority`; None: they have none.
    """

    host: str
    port: int
    fingerprint: str
    host_key: str
    preview_authority: str | None = None

    def preview_host(self, box_id: str) -> str | None:
        """Return the host name of a box's ports, with `PORT` for the number, or None."""
        return self.preview_authority and f"{box_id[:SHORT_ID]}-PORT.{self.preview_authority}"

    def ssh_command(self, user: str, *words: str) -> str:
        """Return an ssh command line for this server, with the user name quoted if needed."""
        plain = user.replace("-", "").replace("_", "").isalnum()
        quoted = user if plain else f"'{user}'"
        port = "" if self.port == 22 else f"-p {self.port} "
        return " ".join([f"ssh {port}{quoted}@{self.host}", *words])

    def box_command(self, ref: str, *, confidential: bool) -> str:
        """Return an ssh command line that opens a shell in a box."""
        if confidential:
            return self.with_jump_host(f"ssh -J {UNNAMED} root@{ref}")
        return self.ssh_command(ref)

    def with_jump_host(self, text: str) -> str:
        """Return the text with this server as the jump host that leads into confidential boxes."""
        return named(text, self.host, self.port)

    def with_cli_command(self, text: str) -> str:
        """Return a text that ends in a CLI command, with the command as a shell takes it."""
        return spelled(text, self.ssh_command("cli"))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command, with its caller and its collaborators."""

    principal: Principal
    operations: Operations
    endpoint: Endpoint
    now: datetime
    stdio: Stdio
    console: Console
    args: argparse.Namespace

    async def stdin(self) -> bytes:
        """Return the whole input, for values that must not appear in a command line.

        Raises UsageError on a terminal, because a terminal shows the value, and if the input is
        longer than MAX_STDIN bytes.
        """
        if self.stdio.terminal:
            raise UsageError(
                "the command reads standard input: use a pipe or a file, and ssh without -t"
            )
        content = bytearray()
        while data := await self.stdio.read():
            content += data
            if len(content) > MAX_STDIN:
                raise UsageError(f"standard input is longer than {MAX_STDIN} bytes")
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `words` as users type them, and `about`, one line of help.

    `example` is a whole command line without `ssh cli@HOST`.
    """

    words: tuple[str, ...]
    about: str
    example: str
    run: Callable[[Call], Awaitable[Reply | ExitStatus]]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None

    @property
    def name(self) -> str:
        """The words of the command in one string."""
        return " ".join(self.words)

    def parser(self) -> argparse.ArgumentParser:
        """Return a new parser for the words after the command's own."""
        parser = _Parser(prog=self.name, add_help=False, allow_abbrev=False)
        self.arguments(parser)
        parser.add_argument("--json", action="store_true")
        return parser

    @property
    def synopsis(self) -> str:
        """The syntax in one line: `name ARGUMENT [--option]`."""
        return _usage(self.parser())


@dataclass(frozen=True, slots=True)
class Console:
    """The commands for one user name, in the order of help."""

    user: str
    commands: tuple[Command, ...]

    def find(self, words: Sequence[str]) -> tuple[Command, Sequence[str]]:
        """Return the longest command that the words start with, and the words after it.

        Raises UsageError if there is none.
        """
        if not _HELP.isdisjoint(itertools.takewhile(lambda word: word != "--", words)):
            words = ["help", *self._help_topic(words)]
        matches = [
            command
            for command in self.commands
            if tuple(words[: len(command.words)]) == command.words
        ]
        if matches:
            command = max(matches, key=lambda command: len(command.words))
            return command, words[len(command.words) :]
        family = [command.name for command in self.commands if command.words[0] == words[0]]
        if family:
            nearest = did_you_mean(" ".join(words[:2]), family)
            raise UsageError(f"{words[0]} needs one of: {', '.join(family)}{nearest}")
        raise UsageError(self.unknown_command(words[0]))

    def unknown_command(self, typed: str) -> str:
        """Return the error text for words that start no command."""
        names = dict.fromkeys(
            name for command in self.commands for name in (command.words[0], command.name)
        )
        return f"there is no command {shown(typed)}{did_you_mean(typed, names)}; see: help"

    def _help_topic(self, words: Sequence[str]) -> list[str]:
        """Return the words that `--help` explains: as many as start a command, at least one."""
        topic = [word for word in words if word not in _HELP]
        lengths = [
            length
            for length in range(1, len(topic) + 1)
            if any(command.words[:length] == tuple(topic[:length]) for command in self.commands)
        ]
        return topic[: max(lengths, default=1)]


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; usage: {_usage(self)}")


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage of a parser in one line."""
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def workspace_option(parser: argparse.ArgumentParser) -> None:
    """Add `-w WS`: another default workspace for the call."""
    parser.add_argument("-w", dest="ws", metavar="WS")
