"""Programs on a terminal: vim, less, htop, tmux and dtach."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.programs.load import (
    ANSWER_TIMEOUT,
    Load,
    output,
    program,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, COLUMNS = 24, 80
REDRAW = "\x0c"
ESCAPE = "\x1b"
DETACH = "\x1c"
ADD = "n=$((n+1)); echo value=$n pid=$$\r"


class Terminal:
    """A pseudo-terminal with a program on it. This process is at its other end."""

    def __init__(self, load: Load, name: str, *command: str) -> None:
        self._shown = b""
        self._master, slave = os.openpty()
        self._size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, self._size)
        words = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": "/root", "SHELL": "/bin/bash"}
        child = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd="/root",
            env=os.environ | words,
        )
        os.close(slave)
        load.pids[name] = child.pid

    def type(self, keys: str) -> None:
        """Type keys; forget what was shown so far."""
        self._read(0.0)
        self._shown = b""
        os.write(self._master, keys.encode())

    def shows(self, *texts: str) -> None:
        """Wait until the program shows all texts."""
        end = time.monotonic() + ANSWER_TIMEOUT
        while not all(text.encode() in self._shown for text in texts):
            self._read(0.1)
            if time.monotonic() > end:
                raise TimeoutError(f"the screen shows {self._shown!r}, not {texts}")
        size = fcntl.ioctl(self._master, termios.TIOCGWINSZ, bytes(8))
        if size != self._size:
            raise RuntimeError(f"the terminal has another size: {size!r}")

    def _read(self, wait: float) -> None:
        while select.select([self._master], [], [], wait)[0]:
            data = os.read(self._master, 65536)
            if not data:
                raise RuntimeError("the program has closed its terminal")
            self._shown += data


@program("vim")
def vim(load: Load) -> Iterator[None]:
    """A text that was never saved, its undo history and a register."""
    load.version = output("vim", "--version").splitlines()[0]
    terminal = Terminal(load, "vim", "vim", "-u", "NONE", "-N", "/root/text")
    terminal.type("ifirst line" + ESCAPE)
    terminal.type(REDRAW)
    terminal.shows("first line")
    number = 0
    while True:
        number += 1
        terminal.type(f"Goline {number}{ESCAPE}Gogone{ESCAPE}u")
        terminal.type(REDRAW)
        terminal.shows(f"line {number}")
        if number % 10 == 0:
            saved = Path(f"/root/saved-{number}")
            terminal.type(f":w {saved}\r")
            whole_file(saved)
            lines = [line for line in saved.read_text().splitlines() if line]
            if lines != ["first line", *(f"line {n}" for n in range(1, number + 1))]:
                raise RuntimeError(f"vim saved {lines}")
        yield


def whole_file(file: Path) -> None:
    """Wait until vim has written a file."""
    until(lambda: file.exists() and file.read_text().endswith("\n"))


@program("less")
def less(load: Load) -> Iterator[None]:
    """Positions and marks in a file and in the output of a program."""
    load.version = output("less", "--version").splitlines()[0]
    Path("/root/numbers").write_text("".join(f"number {n}.\n" for n in range(1, 10001)))
    pager = "cat /root/numbers | less"
    terminals = (
        Terminal(load, "less", "less", "/root/numbers"),
        Terminal(load, "shell of less", "bash", "-c", f"{pager}; exit 1"),
    )
    for terminal in terminals:
        terminal.shows("number 1.")
        terminal.type("5000gma")
        terminal.shows("number 5000.")
    number = 0
    while True:
        number = number % 9000 + 1
        for terminal in terminals:
            terminal.type(f"{number}g")
            terminal.type(REDRAW)
            terminal.shows(f"number {number}.")
            terminal.type("'a")
            terminal.type(REDRAW)
            terminal.shows("number 5000.")
        yield


@program("htop")
def htop(load: Load) -> Iterator[None]:
    """Its screen, which it renews by itself and for a key."""
    load.version = output("htop", "--version").splitlines()[0]
    terminal = Terminal(load, "htop", "htop", "-d", "2", "--no-color")
    terminal.shows("Load average")
    while True:
        terminal.type(REDRAW)
        terminal.shows("Tasks:", "Command", "F10")
        yield


@program("tmux")
def tmux(load: Load) -> Iterator[None]:
    """A server with two panes and a client at a terminal."""
    load.version = output("tmux", "-V")
    terminal = Terminal(load, "tmux client", "tmux", "new-session", "-s", "work", "bash --norc")
    terminal.shows("[work]")
    output("tmux", "split-window", "-t", "work", "bash --norc")
    load.pids["tmux server"] = int(output("tmux", "display-message", "-p", "#{pid}"))
    panes = output("tmux", "list-panes", "-t", "work", "-F", "#{pane_id} #{pane_pid}").splitlines()
    load.pids |= {f"pane {pane.split()[0]}": int(pane.split()[1]) for pane in panes}
    number = 0
    while True:
        number += 1
        for pane in panes:
            name, pid = pane.split()
            output("tmux", "send-keys", "-t", name, ADD[:-1], "Enter")
            pane_shows(name, f"value={number} pid={pid}")
        terminal.shows(f"value={number} ")
        terminal.type("")
        yield


def pane_shows(name: str, text: str) -> None:
    """Wait until a pane of tmux shows a text."""
    until(lambda: text in output("tmux", "capture-pane", "-p", "-t", name))


@program("dtach")
def dtach(load: Load) -> Iterator[None]:
    """A shell behind dtach, to which clients attach in turn."""
    load.version = output("dpkg-query", "-W", "dtach")
    command = ("dtach", "-A", "/root/socket", "-E", "-z", "bash", "--norc")
    first = Terminal(load, "first client", *command)
    first.type("echo shell=$((40+2))\r")
    first.shows("shell=42")
    second = Terminal(load, "second client", "dtach", "-a", "/root/socket", "-E")
    pid = output("pgrep", "-f", "^bash --norc")
    load.pids["shell"] = int(pid)
    number = 0
    while True:
        number += 1
        for terminal in (first, second):
            terminal.type("")
        (first, second)[number % 2].type(ADD)
        for terminal in (first, second):
            terminal.shows(f"value={number} pid={pid}")
        yield
