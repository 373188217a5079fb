"""Messages to the service manager, with the datagram socket of one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest
from boxd.privileged.service_manager import ServiceManager
from tests.harness.logs import provoked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGGER = "boxd.privileged.service_manager"


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(tmp_path / "notify"))
        inbox.setblocking(False)
        yield inbox


def started(monkeypatch: pytest.MonkeyPatch, address: str, **variables: str) -> ServiceManager:
    """The manager of a process with these variables."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return ServiceManager.take()


def test_without_a_manager_messages_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager.take()
    assert not manager.waits_for_ready
    manager.ready()
    manager.stopping()
    assert not manager.beat(alive=True)
    assert manager.beat_s is None


def test_messages(monkeypatch: pytest.MonkeyPatch, inbox: socket.socket) -> None:
    manager = started(monkeypatch, inbox.getsockname(), WATCHDOG_USEC="4000000")
    waiting = [manager.waits_for_ready]
    manager.ready()
    manager.ready()
    waiting.append(manager.waits_for_ready)
    assert waiting == [True, False]
    assert manager.beat_s == 1.0
    assert not manager.beat(alive=False)
    assert manager.beat(alive=True)
    assert not manager.beat(alive=True), "the next one is not due yet"
    manager.stopping()
    assert [inbox.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    with pytest.raises(BlockingIOError):
        inbox.recv(99)


def test_a_socket_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind("")  # the kernel chooses an abstract name
        name = inbox.getsockname()
        started(monkeypatch, "@" + name[1:].decode()).ready()
        assert inbox.recv(99) == b"READY=1"


def test_other_processes_do_not_inherit_the_variables(
    monkeypatch: pytest.MonkeyPatch, inbox: socket.socket
) -> None:
    started(
        monkeypatch, inbox.getsockname(), WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid())
    )
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


def test_the_watchdog_of_another_process(
    monkeypatch: pytest.MonkeyPatch, inbox: socket.socket
) -> None:
    manager = started(monkeypatch, inbox.getsockname(), WATCHDOG_USEC="4000000", WATCHDOG_PID="1")
    assert manager.watchdog_s is None
    assert manager.waits_for_ready


@pytest.mark.parametrize("period", ["soon", "-1", "0", "٣"])
def test_a_wrong_period(monkeypatch: pytest.MonkeyPatch, inbox: socket.socket, period: str) -> None:
    with pytest.raises(BadRequest, match=r"WATCHDOG_USEC.*WatchdogSec="):
        started(monkeypatch, inbox.getsockname(), WATCHDOG_USEC=period)


def test_a_manager_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manager = started(monkeypatch, str(tmp_path / "absent"))
    with provoked(LOGGER) as lines:
        manager.ready()
    assert "did not get READY=1" in lines[0]
