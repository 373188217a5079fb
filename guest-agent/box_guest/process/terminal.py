"""Pseudo-terminals: opening them, their modes as SSH encodes them, their size, line breaks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TTY_OP_ISPEED = 128
TTY_OP_OSPEED = 129
MAX_SIDE = 0xFFFF
"""Maximum number of rows, columns or pixels, which the kernel stores in 16 bits."""

# Opcodes of RFC 4254 section 8 and RFC 8160. Character size and parity are missing: the kernel
# keeps pseudo-terminals at 8 bits without parity.
_CHARACTERS = {
    1: termios.VINTR,
    2: termios.VQUIT,
    3: termios.VERASE,
    4: termios.VKILL,
    5: termios.VEOF,
    6: termios.VEOL,
    7: termios.VEOL2,
    8: termios.VSTART,
    9: termios.VSTOP,
    10: termios.VSUSP,
    12: termios.VREPRINT,
    13: termios.VWERASE,
    14: termios.VLNEXT,
    18: termios.VDISCARD,
}
_INPUT, _OUTPUT, _, _LOCAL, _ISPEED, _OSPEED, _CC = range(7)
_IUTF8 = 0o40000
_FLAGS = {
    30: (_INPUT, termios.IGNPAR),
    31: (_INPUT, termios.PARMRK),
    32: (_INPUT, termios.INPCK),
    33: (_INPUT, termios.ISTRIP),
    34: (_INPUT, termios.INLCR),
    35: (_INPUT, termios.IGNCR),
    36: (_INPUT, termios.ICRNL),
    37: (_INPUT, 0o1000),  # IUCLC, which the termios module does not name
    38: (_INPUT, termios.IXON),
    39: (_INPUT, termios.IXANY),
    40: (_INPUT, termios.IXOFF),
    41: (_INPUT, termios.IMAXBEL),
    42: (_INPUT, _IUTF8),
    50: (_LOCAL, termios.ISIG),
    51: (_LOCAL, termios.ICANON),
    52: (_LOCAL, 0o4),  # XCASE
    53: (_LOCAL, termios.ECHO),
    54: (_LOCAL, termios.ECHOE),
    55: (_LOCAL, termios.ECHOK),
    56: (_LOCAL, termios.ECHONL),
    57: (_LOCAL, termios.NOFLSH),
    58: (_LOCAL, termios.TOSTOP),
    59: (_LOCAL, termios.IEXTEN),
    60: (_LOCAL, termios.ECHOCTL),
    61: (_LOCAL, termios.ECHOKE),
    62: (_LOCAL, 0o40000),  # PENDIN
    70: (_OUTPUT, termios.OPOST),
    71: (_OUTPUT, 0o2),  # OLCUC
    72: (_OUTPUT, termios.ONLCR),
    73: (_OUTPUT, termios.OCRNL),
    74: (_OUTPUT, termios.ONOCR),
    75: (_OUTPUT, termios.ONLRET),
}
_SPEEDS = {
    int(name[1:]): getattr(termios, name)
    for name in dir(termios)
    if name[0] == "B" and name[1:].isdigit()
}
_DISABLED = b"\0"


@dataclass(frozen=True, slots=True)
class PtyRequest:
    """A client's request: terminal type, size (columns, rows, width, height), modes by opcode."""

    term: str
    size: tuple[int, int, int, int]
    modes: Mapping[int, int]


def open_pair(request: PtyRequest) -> tuple[int, int]:
    """Open a new terminal with size and modes set; return descriptors (master, slave)."""
    master, slave = os.openpty()
    try:
        resize(master, request.size)
        set_modes(slave, request.modes)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def resize(descriptor: int, size: tuple[int, int, int, int]) -> None:
    """Set the window size; the kernel sends SIGWINCH to the foreground group."""
    columns, rows, width, height = (min(side, MAX_SIDE) for side in size)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def set_modes(descriptor: int, modes: Mapping[int, int]) -> None:
    """Apply modes by opcode; unknown opcodes and speeds are ignored."""
    if not modes:
        return
    attributes = termios.tcgetattr(descriptor)
    for opcode, value in modes.items():
        if opcode in _CHARACTERS:
            # 255 means "disabled" in the protocol.
            attributes[_CC][_CHARACTERS[opcode]] = (
                _DISABLED if value == 255 else bytes([value & 0xFF])
            )
        elif opcode in _FLAGS:
            field, bit = _FLAGS[opcode]
            attributes[field] = attributes[field] | bit if value else attributes[field] & ~bit
        elif opcode == TTY_OP_ISPEED:
            attributes[_ISPEED] = _SPEEDS.get(value, attributes[_ISPEED])
        elif opcode == TTY_OP_OSPEED:
            attributes[_OSPEED] = _SPEEDS.get(value, attributes[_OSPEED])
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


def foreground_group(master: int) -> int | None:
    """Return the terminal's foreground process group, or None."""
    try:
        group = os.tcgetpgrp(master)
    except OSError:
        return None
    return group if group > 0 else None


def end_of_input(master: int, *, in_line: bool) -> bytes:
    """Return the bytes that mean "end of file" to a program that reads this terminal by lines.

    A terminal has no half-close. In canonical mode the EOF character takes its place, sent twice
    after an unfinished line. In other modes there is no equivalent, and the result is empty.
    """
    attributes = termios.tcgetattr(master)
    character = attributes[_CC][termios.VEOF]
    if not attributes[_LOCAL] & termios.ICANON or character == _DISABLED:
        return b""
    return bytes(character) * (2 if in_line else 1)


def send_break(master: int) -> None:
    """Apply a line break to the terminal: nothing, an interrupt or a NUL, depending on its modes.

    The kernel does not implement breaks for pseudo-terminals.
    """
    flags = termios.tcgetattr(master)[_INPUT]
    if flags & termios.IGNBRK:
        return
    if flags & termios.BRKINT:
        group = foreground_group(master)
        if group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGINT)
        return
    with contextlib.suppress(BlockingIOError):
        os.write(master, b"\0")
