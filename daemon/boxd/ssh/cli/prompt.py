"""Lines that a person types at a terminal: hidden ones, and answers to questions.

The client's terminal is raw during a session, so that nothing appears that is not sent back.
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
_FOLLOWS, _FOLLOWING = 0xC0, 0x80
"""Bits of a byte of UTF-8 that is not the first of its character."""


async def hidden_line(stdio: Stdio, what: str) -> bytes:
    """Asks for a line at the terminal. UsageError after Ctrl-C, beyond MAX_STDIN bytes, or when the
    input ends within the line: the client is gone, and half a line is no value.

    Backspace removes the last character, Ctrl-U the line; Ctrl-D and Enter end it.
    """
    await stdio.write(f"{what} (not shown): ".encode())
    try:
        return await _line(stdio, what)
    finally:
        await stdio.write(b"\r\n")


async def confirmed(stdio: Stdio, question: str, what: str) -> bool:
    """Whether the person answers `y` or `yes`. UsageError after Ctrl-C names `what`."""
    await stdio.write(f"{question} [y/N] ".encode())
    try:
        answer = await _line(stdio, what, echo=True)
    finally:
        await stdio.write(b"\r\n")
    return answer.strip().lower() in (b"y", b"yes")


async def _line(stdio: Stdio, what: str, *, echo: bool = False) -> bytes:
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
    """Removes the last character, or all. Returns how many; one may be several bytes of UTF-8."""
    characters = 0
    while line and (whole or not characters):
        characters += line.pop() & _FOLLOWS != _FOLLOWING
    return characters
