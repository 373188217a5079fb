"""The first process of the service: it starts the helper and the front, and starts them again.

It also reports to the service manager. It does nothing else, so no stranger reaches it. Both
processes end with it. If the front dies, a new one takes over; connections wait meanwhile. If the
helper dies, both start again. Boxes, mounts and their processes keep running in each case, except
after SIGINT.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.privileged import channel
from boxd.privileged.helper import FRONT_CONNECTED
from boxd.privileged.processes import fork
from boxd.privileged.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
RESTARTS_MAX = 10
"""Restarts within RESTARTS_S after which the service gives up."""
RESTARTS_S = 120.0
PAUSE = 1.0
"""Seconds before a restart, if another one was less than RESTARTS_S ago."""
STOP_S = 120.0
"""Seconds that a front gets to stop after SIGTERM, before it is killed."""
LOOK_S = 0.1
IDLE_S = 3600.0
"""Seconds between two looks at the processes without a signal: while something is waiting, and
otherwise."""
HELPER_S = 120.0
"""Seconds that the helper gets to stop before it is killed."""
POLL = 0.02
BEATS_MAX = 4096
"""Bytes of a front's signs of life that are read at once."""
GAVE_UP = 1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Child:
    """A process. `status` is its exit status, or minus the signal that ended it."""

    pid: int
    status: int | None = None


@dataclass(slots=True)
class Supervision:
    """The two processes.

    `helper` runs the helper with its control socket, and `front` a front with its channel and a
    descriptor to which it writes a byte when it serves, and then `manager.beat_s` seconds after
    each other one. Both return an exit status. `on_hang_up` returns the signal that a SIGHUP means
    for the front.
    """

    helper: Callable[[socket.socket], int]
    front: Callable[[socket.socket, int], int]
    on_hang_up: Callable[[], signal.Signals]
    manager: ServiceManager = field(default_factory=ServiceManager)
    _helper: Child | None = None
    _front: Child | None = None
    _control: socket.socket | None = None
    _ready: int = -1
    _served: bool = False
    """Whether an earlier front has served."""
    _front_served: bool = False
    """Whether the present front has served."""
    _has_beaten: bool = False
    """Whether the present front has shown a sign of life since the last message of the watchdog."""
    _stopping: bool = False
    _held: list[signal.Signals] = field(default_factory=list)
    """Signals for the front, in their order."""
    _deadline: float | None = None
    """Monotonic time at which a front that was told to stop is killed."""
    _restarts: deque[float] = field(default_factory=deque)

    def run(self) -> int:
        """Run until a signal stops the service, or until it cannot start; return the status.

        The caller must have one thread.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            while True:
                self._start()
                status = self._until_one_ends()
                if status is not None:
                    return status
        finally:
            self._end()

    def _start(self) -> None:
        """Start the processes that do not run."""
        if self._helper is None:
            mine, theirs = channel.pair()
            self._control = mine
            self._helper = Child(fork("boxd-helper", lambda: self._run_helper(mine, theirs)))
            theirs.close()
        if self._front is None and self._control is not None:
            mine, theirs = channel.pair()
            reader, writer = os.pipe()
            control = self._control
            self._front = Child(
                fork("boxd-front", lambda: self._run_front(control, mine, theirs, reader, writer))
            )
            # A helper that has just died is noticed later.
            with mine, theirs, suppress(OSError):
                socket.send_fds(self._control, [FRONT_CONNECTED], [theirs.fileno()])
            os.close(writer)
            self._ready = reader

    def _run_helper(self, mine: socket.socket, theirs: socket.socket) -> int:
        mine.close()
        return self.helper(theirs)

    def _run_front(
        self,
        control: socket.socket,
        mine: socket.socket,
        theirs: socket.socket,
        reader: int,
        writer: int,
    ) -> int:
        control.close()
        theirs.close()
        os.close(reader)
        return self.front(mine, writer)

    def _until_one_ends(self) -> int | None:
        """Return the exit status of the service, or None after the end of a process to restart."""
        while True:
            number = self._next_signal()
            if number == signal.SIGCHLD:
                self._reap()
                if self._has_ended(self._helper):
                    return self._on_helper_end()
                if self._has_ended(self._front):
                    return self._on_front_end()
            elif number is not None:
                meaning = self.on_hang_up() if number == signal.SIGHUP else number
                if meaning != signal.SIGHUP:
                    self._stopping = True
                    self.manager.stopping()
                    self._deadline = time.monotonic() + STOP_S
                self._held.append(meaning)
            self._pass_on()
            self._report()

    def _next_signal(self) -> signal.Signals | None:
        """Wait for a signal; return None if something else may have to be done."""
        waits = bool(self._held) or self._deadline is not None or self.manager.waits_for_ready
        idle_s = min(IDLE_S, self.manager.beat_s or IDLE_S)
        answer = signal.sigtimedwait(SIGNALS, LOOK_S if waits else idle_s)
        return None if answer is None else signal.Signals(answer.si_signo)

    def _report(self) -> None:
        """Report to the service manager.

        A front that serves must show signs of life. While one starts, it has nothing to show.
        """
        is_ready = self._is_ready()
        if is_ready:
            self.manager.ready()
        if self.manager.beat(alive=self._has_beaten or not is_ready):
            self._has_beaten = False

    def _pass_on(self) -> None:
        """Send held signals to the front, unless it replaces another one and does not serve yet.

        A front that is starting cannot stop boxes, which may run already.
        """
        if self._deadline is not None and time.monotonic() > self._deadline:
            _log.error("the front process does not stop; it is killed")
            self._deadline = None
            _send(self._front, signal.SIGKILL)
        while self._held and (not self._served or self._is_ready()):
            number = self._held.pop(0)
            if number == signal.SIGINT:
                self._deadline = None  # each box stops in bounded time
            _send(self._front, number)

    def _is_ready(self) -> bool:
        """Return whether the present front serves, or has served."""
        if self._ready >= 0:
            os.set_blocking(self._ready, False)
            with suppress(BlockingIOError):
                self._has_beaten |= bool(os.read(self._ready, BEATS_MAX))
                self._front_served |= self._has_beaten
        return self._front_served

    def _on_front_end(self) -> int | None:
        status = self._take_front()
        if self._stopping or not self._served:
            return max(status, 1) if status < 0 else status
        _log.error("the front process ended with status %d; another one starts", status)
        return self._before_restart()

    def _on_helper_end(self) -> int | None:
        helper, self._helper = self._helper, None
        if self._control is not None:
            self._control.close()
        # The front ends by itself, because its channel has ended.
        if not self._wait(self._front, 2.0):
            _send(self._front, signal.SIGKILL)
            self._wait(self._front, 10.0)
        self._take_front()
        status = GAVE_UP if helper is None or helper.status is None else helper.status
        if not self._served and status > 0:
            return status  # it has printed why
        if self._stopping or not self._served:
            _log.error("the helper process ended with status %d", status)
            return GAVE_UP
        _log.error("the helper process ended with status %d; both processes start again", status)
        return self._before_restart()

    def _take_front(self) -> int:
        """Forget the front, which has ended; return its status."""
        front, self._front = self._front, None
        self._served |= self._is_ready()
        self._front_served = self._has_beaten = False
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1
        return 1 if front is None or front.status is None else front.status

    def _before_restart(self) -> int | None:
        """Wait before a restart. Return a status instead if there were too many."""
        now = time.monotonic()
        while self._restarts and self._restarts[0] < now - RESTARTS_S:
            self._restarts.popleft()
        if len(self._restarts) >= RESTARTS_MAX:
            _log.error("too many restarts; the service ends, and boxes keep running")
            return GAVE_UP
        if self._restarts:
            time.sleep(PAUSE)
        self._restarts.append(now)
        return None

    def _end(self) -> None:
        """End both processes."""
        for child, step in ((self._front, 30.0), (self._helper, HELPER_S)):
            if child is None or self._has_ended(child):
                continue
            _send(child, signal.SIGTERM)
            if not self._wait(child, step):
                _send(child, signal.SIGKILL)
                self._wait(child, 10.0)

    def _wait(self, child: Child | None, seconds: float) -> bool:
        """Wait for the end of a process; return whether it has ended."""
        deadline = time.monotonic() + seconds
        while not self._has_ended(child):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
            self._reap()
        return True

    def _reap(self) -> None:
        for child in (self._helper, self._front):
            if child is not None and child.status is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.status = os.waitstatus_to_exitcode(status)

    @staticmethod
    def _has_ended(child: Child | None) -> bool:
        return child is None or child.status is not None


def _send(child: Child | None, number: signal.Signals) -> None:
    # A process that has ended keeps its number until it is reaped.
    if child is not None and child.status is None:
        os.kill(child.pid, number)
