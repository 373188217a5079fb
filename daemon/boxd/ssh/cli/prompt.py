"""Lines that a person types at a terminal: hidden values, and answers to questions.

The client's terminal is in raw mode during a session, so it shows only what the daemon echoes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import MAX_STDIN, UsageError

if TYPE_CHECKING:
    from boxd.ssh.cli.command import Stdio

_ENTER = b"\r\n"
_INTERRUPT, _END = b"\x03", b"\x04"
_ERASE = b"\x7f\x08"
_KILL = b"\x15"
_BACK = b"\b \b"
"""Removes a character from the terminal."""
_UTF8_MASK, _UTF8_CONTINUATION = 0xC0, 0x80
"""A byte continues a UTF-8 character if its masked bits equal the second value."""


async def read_hidden_line(stdio: Stdio, what: str) -> bytes:
    """Ask for a line at the terminal and do not echo it.

    Backspace removes the last character, Ctrl-U the line; Ctrl-D and Enter end it. Raises
    UsageError after Ctrl-C, for more than MAX_STDIN bytes, and if the input ends before Enter. In
    the last case the client has disconnected, and a part of a line is not the value.
    """
    await stdio.write(f"{what} (not shown): ".encode())
    try:
        return await _read_line(stdio, what)
    finally:
        await stdio.write(b"\r\n")


async def confirm(stdio: Stdio, question: str, what: str) -> bool:
    """Return whether the person answers `y` or `yes`. UsageError after Ctrl-C names `what`."""
    await stdio.write(f"{question} [y/N] ".encode())
    try:
        answer = await _read_line(stdio, what, echo=True)
    finally:
        await stdio.write(b"\r\n")
    return answer.strip().lower() in (b"y", b"yes")


async def _read_line(stdio: Stdio, what: str, *, echo: bool = False) -> bytes:
    line = bytearray()
    while data := await stdio.read():
        for number in data:
            key = bytes([number])
            if key in _ENTER or key == _END:
                return bytes(line)
            if key == _INTERRUPT:
                raise UsageError(f"interrupted: the {what} is unchanged")
            if key in _ERASE or key == _KILL:
                erased = _erase(line, whole=key == _KILL)
                if echo:
                    await stdio.write(_BACK * erased)
            else:
                line += key
                if echo:
                    await stdio.write(key)
            if len(line) > MAX_STDIN:
                raise UsageError(f"the {what} is longer than {MAX_STDIN} bytes")
    raise UsageError(f"the input ended before Enter: the {what} is unchanged")


def _erase(line: bytearray, *, whole: bool) -> int:
    """Remove the last character, or all; return the number of characters.

    One character may be several bytes of UTF-8.
    """
    characters = 0
    while line and (whole or not characters):
        characters += line.pop() & _UTF8_MASK != _UTF8_CONTINUATION
    return characters
