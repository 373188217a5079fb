"""What would be lost in a suspension, from the kernel's texts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import obstacles
from boxd.backends.checkpoint.obstacles import Process
from boxd.backends.host import descriptors

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STATUS = """\
Name:\tstr\\nace
Umask:\t0022
State:\tD (disk sleep)
Pid:\t4711
TracerPid:\t4700
Uid:\t0\t1000\t0\t0
Gid:\t0\t0\t0\t0
NSpid:\t4711\t41
"""
LOCKS = """\
1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF
2: LEASE  ACTIVE    WRITE 41 fd:01:12 0 EOF
3: LEASE  BREAKING  READ  42 fd:01:13 0 EOF
4: FLOCK  ADVISORY  WRITE 43 fd:01:13 0 EOF
"""
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid inode\n"


def row(local: str, remote: str, state: str, inode: int = 7, unsent: int = 0) -> str:
    """A line of /proc/net/tcp."""
    queues = f"{unsent:08X}:00000000 00:00000000 00000000"
    return f"   0: {local} {remote} {state} {queues}     0        0 {inode} 1 0 20 4 30 10 -1\n"


UNIX = """
import os, socket, sys
from boxd.backends.checkpoint.obstacles import tables, unaccepted
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
seen = [sum(map(unaccepted, tables(os.getpid(), "unix")))]
client.connect(sys.argv[1])
seen.append(sum(map(unaccepted, tables(os.getpid(), "unix"))))
connection = server.accept()
seen.append(sum(map(unaccepted, tables(os.getpid(), "unix"))))
print(seen)
"""
HERE, THERE = "0100007F:1F90", "0100007F:C350"


CHROOTED = """
import os, sys
os.chroot(sys.argv[1])
print("there", flush=True)
sys.stdin.read()
"""


def test_no_link_of_a_box_is_followed_on_the_host(tmp_path: Path) -> None:
    """Its first process can change its root, and so what /proc/PID/root/dev is."""
    (tmp_path / "dev").mkdir()
    queues = tmp_path / "dev" / "mqueue"
    command = [sys.executable, "-c", CHROOTED, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        first = {process.pid: Process("init", 1, 0, frozenset({"0"}))}
        queues.mkdir()
        assert obstacles._queued(first) == ""
        (queues / "one").touch()
        assert "POSIX message queue" in obstacles._queued(first)
        (queues / "one").unlink()
        queues.rmdir()
        queues.symlink_to("/usr/bin")
        assert obstacles._queued(first) == ""
        queues.unlink()
        (tmp_path / "dev").rmdir()
        (tmp_path / "dev").symlink_to("/dev")
        assert obstacles._queued(first) == ""
        process.kill()


def test_a_process_by_what_the_box_sees_of_it() -> None:
    process = obstacles.parse_process(STATUS)
    assert process == Process("str\\nace", 41, 4700, frozenset({"0", "1000"}))
    assert str(process) == "`str\\nace` (pid 41)"


def test_leases_and_no_other_locks() -> None:
    assert obstacles.lease_holders(LOCKS) == {41, 42}
    assert obstacles.lease_holders("") == set()


def test_half_closed_connections_within_the_box() -> None:
    closing = row(HERE, THERE, "08") + row(THERE, HERE, "05")
    assert obstacles.half_closed_ports([HEAD + closing]) == {0x1F90, 0xC350}
    assert obstacles.half_closed_ports([HEAD, HEAD + closing]) == {0x1F90, 0xC350}


def test_other_connections_are_no_obstacle() -> None:
    for rows in (
        row(HERE, THERE, "01") + row(THERE, HERE, "01"),
        row(HERE, "00000000:0000", "0A"),
        row(HERE, "0200A8C0:0050", "08"),
        row(HERE, THERE, "08") + row(THERE, HERE, "05", inode=0),
    ):
        assert obstacles.half_closed_ports([HEAD + rows]) == set()


def test_data_that_the_receiver_has_no_room_for() -> None:
    jammed = row(HERE, THERE, "01", unsent=9) + row(THERE, HERE, "01")
    assert obstacles.jammed_ports([HEAD + jammed]) == {0x1F90}
    assert obstacles.jammed_ports([HEAD + row(HERE, "0200A8C0:0050", "01", unsent=9)]) == set()


def test_connections_that_a_server_has_not_accepted() -> None:
    queue = "00000000:00000002 00:00000000 00000000"
    busy = f"   0: {HERE} 00000000:0000 0A {queue}     0        0 7 1 0 100 0 0 10 0\n"
    idle = busy.replace("00000002", "00000000")
    assert obstacles.waiting_ports([HEAD + idle, HEAD + busy]) == {0x1F90}
    assert obstacles.waiting_ports([HEAD + idle, HEAD + row(HERE, THERE, "01")]) == set()


def test_unix_connections_count_until_they_are_accepted(tmp_path: Path) -> None:
    """In a network namespace of its own, without the sockets of other programs."""
    command = ["unshare", "--net", sys.executable, "-c", UNIX, str(tmp_path / "socket")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[0, 1, 0]\n"


def test_no_processes_are_no_obstacle() -> None:
    assert obstacles.find([]) == ""


def test_this_process_is_no_obstacle() -> None:
    assert obstacles.find([os.getpid()]) == ""


def test_descriptors_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    most = descriptors.count(pid)
    monkeypatch.setattr(obstacles, "MOST_DESCRIPTORS", most)
    assert obstacles.find([pid]) == ""
    copy = os.dup(0)
    try:
        assert obstacles.find([pid]) == (
            f"its processes have more than {most:,} files open together. Close some, or end a "
            "process; the box stays awake"
        )
    finally:
        os.close(copy)
    assert descriptors.count(1 << 22) == 0
