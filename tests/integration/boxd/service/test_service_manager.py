"""A service reports to systemd: ready, alive while its front answers, and stopping."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.daemon import BOXD, START_S, STOP_S, installation

pytestmark = pytest.mark.timeout(300)
SILENCE_S = 2.0
"""Several times the period of the messages."""


def messages_until(inbox: socket.socket, wanted: bytes) -> set[bytes]:
    """The messages up to the wanted one."""
    received = {b""}
    while wanted not in received:
        received.add(inbox.recv(4096))
    return received - {b""}


def is_silent(inbox: socket.socket) -> bool:
    """Whether no message comes for SILENCE_S."""
    inbox.settimeout(SILENCE_S)
    with suppress(TimeoutError):
        inbox.recv(4096)
        return False
    inbox.settimeout(START_S)
    return True


def front_of(pid: int) -> int:
    """The pid of the front below the first process."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text() == "boxd-front\n":
            return int(child)
    raise AssertionError("there is no front")


def test_the_service_reports_to_its_manager(image_rootfs: Path, tmp_path: Path) -> None:
    with (
        installation(image_rootfs) as made,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        inbox.bind(str(tmp_path / "notify"))
        inbox.settimeout(START_S)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        addresses = ["--ssh-addr", "127.0.0.1:0", "--boxes-size", "1G", "--prepared-boxes", "0"]
        with made.log.open("wb") as log:
            service = subprocess.Popen(
                [*BOXD, "serve", "--state-dir", str(made.state), *addresses],
                env=os.environ | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            # While the front starts, the first process answers for it.
            assert messages_until(inbox, b"READY=1") <= {b"READY=1", b"WATCHDOG=1"}
            assert messages_until(inbox, b"WATCHDOG=1") == {b"WATCHDOG=1"}
            front = front_of(service.pid)
            os.kill(front, signal.SIGSTOP)
            until(lambda: is_silent(inbox), START_S)
            os.kill(front, signal.SIGCONT)
            assert messages_until(inbox, b"WATCHDOG=1") == {b"WATCHDOG=1"}
            service.send_signal(signal.SIGINT)
            assert messages_until(inbox, b"STOPPING=1") <= {b"WATCHDOG=1", b"STOPPING=1"}
            assert service.wait(STOP_S) == 0, made.log.read_text()
        finally:
            service.kill()
            service.wait()
