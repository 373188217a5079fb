"""Pseudo-terminals."""

from __future__ import annotations

import os
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from box_guest.process import terminal
from box_guest.process.terminal import PtyRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VINTR, VEOF, ICANON, ECHO, ICRNL, OPOST = 1, 5, 51, 53, 36, 70


@contextmanager
def pair(
    modes: Mapping[int, int] | None = None, size: tuple[int, int, int, int] = (80, 24, 0, 0)
) -> Iterator[tuple[int, int]]:
    """Descriptors of a terminal made for the request."""
    master, slave = terminal.open_pair(PtyRequest("xterm", size, modes or {}))
    try:
        yield master, slave
    finally:
        os.close(master)
        os.close(slave)


def test_size_is_set_and_changed() -> None:
    with pair(size=(132, 43, 5, 6)) as (master, slave):
        assert os.get_terminal_size(slave) == (132, 43)
        terminal.resize(master, (10, 20, 0, 0))
        assert os.get_terminal_size(slave) == (10, 20)


def test_sizes_beyond_the_kernels_are_clamped() -> None:
    with pair(size=(2**32 - 1, 70000, 2**31, 1)) as (_, slave):
        assert os.get_terminal_size(slave) == (65535, 65535)


def test_modes_are_applied() -> None:
    with pair({ECHO: 0, ICRNL: 0, OPOST: 0, VINTR: 7, VEOF: 255}) as (_, slave):
        iflag, oflag, _, lflag, _, _, cc = termios.tcgetattr(slave)
    assert not lflag & termios.ECHO
    assert not iflag & termios.ICRNL
    assert not oflag & termios.OPOST
    assert cc[termios.VINTR] == b"\x07"
    assert cc[termios.VEOF] == b"\0"


def test_speeds_are_applied_and_unknown_ones_are_not() -> None:
    with pair({128: 9600, 129: 9600}) as (_, slave):
        assert termios.tcgetattr(slave)[4:6] == [termios.B9600, termios.B9600]
    with pair() as (_, plain), pair({128: 12345, 129: 12345}) as (_, asked):
        assert termios.tcgetattr(asked) == termios.tcgetattr(plain)


@pytest.mark.parametrize("opcode", [0, 11, 17, 29, 63, 94, 127, 130, 159, 255])
def test_unknown_opcodes_are_left_alone(opcode: int) -> None:
    with pair() as (_, plain), pair({opcode: 1}) as (_, asked):
        assert termios.tcgetattr(plain) == termios.tcgetattr(asked)


def test_end_of_input_by_mode() -> None:
    with pair() as (master, _):
        assert terminal.end_of_input(master, in_line=False) == b"\x04"
        assert terminal.end_of_input(master, in_line=True) == b"\x04\x04"
    with pair({ICANON: 0}) as (master, _):
        assert terminal.end_of_input(master, in_line=True) == b""
    with pair({VEOF: 255}) as (master, _):
        assert terminal.end_of_input(master, in_line=True) == b""


def test_a_terminal_nobody_owns_has_no_foreground_group() -> None:
    with pair() as (master, _):
        assert terminal.foreground_group(master) is None


def test_break_is_a_nul_unless_the_modes_say_otherwise() -> None:
    with pair({ICANON: 0, ECHO: 0}) as (master, slave):
        terminal.send_break(master)
        assert os.read(slave, 10) == b"\0"
