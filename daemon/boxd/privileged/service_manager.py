"""Messages to the service manager: systemd's datagram protocol, `sd_notify(3)`.

The protocol is one datagram of lines to a socket that an environment variable names, so it needs no
library.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BadRequest

if TYPE_CHECKING:
    from typing import Self

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"
_SOCKET, _PERIOD, _PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_SEND_S = 1.0
"""Seconds that a message may wait for room in the manager's queue."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServiceManager:
    """The manager that started this process, if there is one."""

    address: str | None = None
    """The path of its socket; None: there is no manager, and messages have no effect."""
    watchdog_s: float | None = None
    """Seconds within which the manager expects the next WATCHDOG message. None: it expects none."""
    _is_ready: bool = False
    _next_beat: float = 0.0

    @classmethod
    def take(cls) -> Self:
        """Return the manager of this process, and remove its variables from the environment.

        Processes that inherit the variables could send messages in the name of this one. Raises
        BadRequest if a variable is wrong.
        """
        address = os.environ.pop(_SOCKET, "") or None
        period = os.environ.pop(_PERIOD, "")
        process = os.environ.pop(_PROCESS, "")
        if address is None or not period or (process and process != str(os.getpid())):
            return cls(address)
        if not period.isascii() or not period.isdigit() or int(period) == 0:
            raise BadRequest(f"{_PERIOD} is {period[:20]!r}; set WatchdogSec= in the unit")
        return cls(address, int(period) / 1e6)

    @property
    def beat_s(self) -> float | None:
        """Seconds between two signs of life of the front. None: nobody needs them."""
        return None if self.watchdog_s is None else self.watchdog_s / 4

    @property
    def waits_for_ready(self) -> bool:
        """Whether the manager waits for the message that the service has started."""
        return self.address is not None and not self._is_ready

    def ready(self) -> None:
        """Report once that users can connect."""
        if self.waits_for_ready:
            self._is_ready = True
            self._send(READY)

    def stopping(self) -> None:
        """Report that the service is about to end."""
        self._send(STOPPING)

    def beat(self, *, alive: bool) -> bool:
        """Send a WATCHDOG message if one is due and the service is alive; return whether it was."""
        now = time.monotonic()
        if self.watchdog_s is None or not alive or now < self._next_beat:
            return False
        self._next_beat = now + self.watchdog_s / 4
        self._send(WATCHDOG)
        return True

    def _send(self, message: str) -> None:
        if self.address is None:
            return
        path = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_S)
                sender.connect(path)
                sender.send(message.encode())
        except OSError as error:
            _log.warning("the service manager did not get %s: %s", message, error)
