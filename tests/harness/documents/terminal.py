"""A person's shell: an interactive bash on a pseudo-terminal, with a private home directory.

The home is also the one in /etc/passwd, where OpenSSH looks for keys and known hosts.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

PATIENCE_S = 120.0
"""Timeout of one command, in seconds."""
PROMPT = re.compile(rb"<status ([0-9]+)>")
_ENTER = (
    'mount --bind "$1" /etc/passwd; cd "$2"; shift 2; exec bash --norc --noprofile --noediting -i'
)
Reply = tuple[str, str]
"""A pattern of the text that a program shows, and the text that the person then types."""


@dataclass(frozen=True)
class Shown:
    """The exit status of a command, and all text that the terminal showed."""

    status: int
    text: str


class Shell:
    """One shell on one terminal. Raises AssertionError when the shell does not answer."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self._process = process
        self._unread = b""
        self.on_output: Callable[[bytes], None] | None = None
        """Receives all later output of the terminal."""

    def run(self, command: str, replies: Sequence[Reply] = ()) -> Shown:
        """Type one command and give the replies in order."""
        self.type(command + "\n")
        shown = b""
        for question, reply in replies:
            before = self.read_until(re.compile(question.encode()), command)
            shown += before
            self.type(reply)
        last = self.read_until(PROMPT, command)
        status = PROMPT.search(last)
        assert status is not None
        shown += last[: status.start()]
        return Shown(int(status[1]), shown.decode(errors="replace"))

    def begin(self) -> None:
        """Wait for the first prompt."""
        self.type("stty -echo -onlcr; PS2=; PS1='<status $?>'\n")
        self.read_until(re.compile(rb"<status 0>"), "the first prompt")

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._terminal, text.encode())

    def read_until(self, pattern: re.Pattern[bytes], command: str) -> bytes:
        """Return the output up to the end of the first match. `command` is for the error."""
        deadline = time.monotonic() + PATIENCE_S
        while (match := pattern.search(self._unread)) is None:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._terminal], [], [], left)[0]
            assert ready, f"{command!r} does not show {pattern.pattern!r}: {self._unread!r}"
            try:
                output = os.read(self._terminal, 65536)
            except OSError:
                raise AssertionError(f"the shell ended in {command!r}: {self._unread!r}") from None
            self._unread += output
            if self.on_output is not None:
                self.on_output(output)
        text, self._unread = self._unread[: match.end()], self._unread[match.end() :]
        return text


@contextmanager
def open_shell(home: Path, directory: Path, size: tuple[int, int] = (50, 200)) -> Iterator[Shell]:
    """Yield a shell in `directory`. The directory `home` must exist and be empty.

    `size` has the lines and columns of the terminal. The shell and its children end with the
    context.
    """
    accounts = home.with_name("passwd")
    accounts.write_text(f"root:x:0:0:root:{home}:/bin/bash\n")
    environment = {
        "HOME": str(home),
        "USER": "root",
        "PATH": os.environ["PATH"],
        "TERM": "xterm",
        "LANG": "C.UTF-8",
    }
    outer, inner = pty.openpty()
    termios.tcsetwinsize(outer, size)
    enter = ["unshare", "--mount", "bash", "-c", _ENTER, "bash", str(accounts), str(directory)]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *enter],
        env=environment,
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    try:
        shell = Shell(outer, process)
        shell.begin()
        yield shell
    finally:
        os.close(outer)  # the terminal hangs up
        process.wait(PATIENCE_S)
