"""What the service sets again after a restore, with real processes and sockets."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import lost_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IP_TTL_OPTION = (socket.IPPROTO_IP, 12)
LOWEST = 3 << 13


@pytest.fixture
def child() -> Iterator[int]:
    """A process that waits."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def priority(pid: int) -> int:
    return int(lost_settings._libc.syscall(252, 1, pid))


def test_nothing_of_an_ordinary_process(child: int) -> None:
    assert lost_settings.collect([child]).threads == []


def test_processors_and_priority_of_a_process_are_set_again(child: int, tmp_path: Path) -> None:
    everywhere = os.sched_getaffinity(child)
    os.sched_setaffinity(child, {max(everywhere)})
    lost_settings._libc.syscall(251, 1, child, LOWEST)
    lost_settings.write(tmp_path, lost_settings.collect([child]))
    os.sched_setaffinity(child, everywhere)
    lost_settings._libc.syscall(251, 1, child, 0)
    known = lost_settings.read(tmp_path)
    lost_settings.restore(known, [child])
    assert (os.sched_getaffinity(child), priority(child)) == ({max(everywhere)}, LOWEST)


def test_options_of_a_socket_are_set_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(*IP_TTL_OPTION, 1)
        found = [
            one
            for one in lost_settings.collect([os.getpid()]).sockets
            if one.descriptor == sock.fileno()
        ]
        assert found == [
            lost_settings.Socket(found[0].process, sock.fileno(), [(0, 12, "01000000")])
        ]
        lost_settings.write(tmp_path, lost_settings.Forgotten([], found))
        sock.setsockopt(*IP_TTL_OPTION, 0)
        lost_settings.restore(lost_settings.read(tmp_path), [os.getpid()])
        assert sock.getsockopt(*IP_TTL_OPTION) == 1


def test_a_box_with_many_sockets_does_not_hold_the_service_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(*IP_TTL_OPTION, 1)
        assert lost_settings.collect([os.getpid()]).sockets
        monkeypatch.setattr(lost_settings, "MOST_SOCKETS", 0)
        assert lost_settings.collect([os.getpid()]).sockets == []


def test_what_is_gone_is_left_out(tmp_path: Path) -> None:
    assert lost_settings.read(tmp_path) == lost_settings.Forgotten()
    known = lost_settings.Forgotten(
        [lost_settings.Thread(77, 77, [0], LOWEST)],
        [lost_settings.Socket(77, 3, [(0, 12, "01000000")])],
    )
    lost_settings.restore(known, [os.getpid(), 1 << 22])
    assert lost_settings.collect([1 << 22]) == lost_settings.Forgotten()


def test_what_is_no_socket_any_more_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    """A box can open a file in place of a socket between its restore and this step."""
    with (tmp_path / "file").open("w") as file:
        known = lost_settings.Forgotten(
            sockets=[lost_settings.Socket(os.getpid(), file.fileno(), [(0, 12, "01000000")])] * 20
        )
        before = len(os.listdir("/proc/self/fd"))
        lost_settings.restore(known, [os.getpid()])
        assert len(os.listdir("/proc/self/fd")) == before


def test_each_thread_of_a_process_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listings = []
    read = lost_settings._threads

    def threads(pid: int) -> dict[int, int]:
        listings.append(pid)
        return read(pid)

    monkeypatch.setattr(lost_settings, "_threads", threads)
    pid = os.getpid()
    everywhere = sorted(os.sched_getaffinity(0))
    known = lost_settings.Forgotten(
        [lost_settings.Thread(pid, one, everywhere, 0) for one in range(500)]
    )
    lost_settings.restore(known, [pid])
    assert listings == [pid]
