"""`box sh`: a login shell in a box, on the terminal of the caller."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from boxd_client.errors import BoxError, ConnectionLost, InvalidRequest, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from boxd_client._sync.box import Box
    from boxd_client._sync.terminal import Terminal
    from boxd_client.cli.context import Context

READ_BYTES = 65536


def sh(context: Context) -> int:
    """Open a shell; the exit status is that of the shell."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest("box sh needs a terminal; use: box run NAME COMMAND")
    try:
        return _run(context.box())
    except NotFound:
        return _run(context.client.boxes.create(context.args.box))


def _run(box: Box) -> int:
    size = shutil.get_terminal_size()
    with (
        _wakeups() as wakeups,
        _Session(wakeups) as session,
        box.terminal(size.columns, size.lines) as terminal,
        _raw(sys.stdin.fileno()),
    ):
        return session.run(terminal)


class _Session:
    """Copies keystrokes and output. A thread reads the output; the caller's thread does the rest.

    `_wakeups` is a pipe: a byte in it means that the size has changed or that the shell has ended.
    The context ends when the reader has ended, which it does once the terminal is closed.
    """

    def __init__(self, wakeups: tuple[int, int]) -> None:
        self._wakeups = wakeups
        self._ended = threading.Event()
        self._error: BoxError | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            self._reader.join()

    def run(self, terminal: Terminal) -> int:
        """Return the exit code of the shell. Raises ConnectionLost."""
        self._reader = threading.Thread(target=self._show, args=(terminal,), daemon=True)
        self._reader.start()
        keyboard = sys.stdin.fileno()
        while not self._ended.is_set():
            ready, _, _ = select.select([keyboard, self._wakeups[0]], [], [])
            if self._wakeups[0] in ready:
                os.read(self._wakeups[0], READ_BYTES)
            data = os.read(keyboard, READ_BYTES) if keyboard in ready else None
            if self._ended.is_set() or data == b"":
                break
            try:
                if data is None:
                    size = shutil.get_terminal_size()
                    terminal.resize(size.columns, size.lines)
                else:
                    terminal.write(data)
            except ConnectionLost:
                self._reader.join()  # it has the reason
        if self._error is not None:
            raise self._error
        return terminal.exit_code or 0

    def _show(self, terminal: Terminal) -> None:
        try:
            while data := terminal.read():
                view = memoryview(data)
                while view:
                    view = view[os.write(sys.stdout.fileno(), view) :]
        except BoxError as error:
            self._error = error
        except OSError as error:
            self._error = ConnectionLost(f"the terminal is gone: {error.strerror}")
        finally:
            self._ended.set()
            with suppress(BlockingIOError):  # a byte is there already
                os.write(self._wakeups[1], b"e")


@contextmanager
def _wakeups() -> Iterator[tuple[int, int]]:
    """Yield a pipe that gets a byte when the size of the terminal changes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def changed(number: int, frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # a byte is there already
            os.write(writer, b"w")

    previous = signal.signal(signal.SIGWINCH, changed)
    try:
        yield reader, writer
    finally:
        signal.signal(signal.SIGWINCH, previous)
        os.close(reader)
        os.close(writer)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Set a terminal to raw mode and restore it at the end, whatever happens."""
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, settings)
