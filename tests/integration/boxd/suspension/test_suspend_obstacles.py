"""Programs that CRIU cannot dump are named before the dump; stopped ones are kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict
from tests.harness.boxes.programs import started

if TYPE_CHECKING:
    from tests.harness.boxes.suspending import Sleepy

pytestmark = pytest.mark.timeout(300)

READY = "open('/root/ready', 'w').close()"
STOPPED = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nopen('/root/on', 'w').close()"
LEASED = f"""
import fcntl, os, time
descriptor = os.open("/root/leased", os.O_RDWR | os.O_CREAT)
fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
{READY}
time.sleep(999)
"""
TRACING = f"""
import ctypes, os, time
child = os.fork()
if child == 0:
    time.sleep(999)
assert ctypes.CDLL(None).ptrace(0x4206, child, None, None) == 0
{READY}
time.sleep(999)
"""
"""0x4206 is PTRACE_SEIZE."""
HALF_CLOSED = f"""
import socket, time
server = socket.create_server(("127.0.0.1", 8099))
client = socket.create_connection(("127.0.0.1", 8099))
peer, _ = server.accept()
client.shutdown(socket.SHUT_WR)
while peer.recv(1):
    pass
{READY}
time.sleep(999)
"""
AFTER_A_PAUSE = f"""
import socket, time
family, address = socket.AF_INET, ("127.0.0.1", 8099)
if UNIX:
    family, address = socket.AF_UNIX, "/root/socket"
server, client = socket.socket(family), socket.socket(family)
server.bind(address)
server.listen()
client.connect(address)
client.send(b"x")
if HALF_CLOSED:
    peer, _ = server.accept()
    client.shutdown(socket.SHUT_WR)
{READY}
pause = 0
while pause < 0.2:
    before = time.monotonic()
    time.sleep(0.001)
    pause = time.monotonic() - before
if HALF_CLOSED:
    peer.close()
else:
    peer, _ = server.accept()
    assert peer.recv(1) == b"x"
open("/root/passed", "w").close()
time.sleep(999)
"""
"""Ends an obstacle once the process has been frozen for a moment."""
PAUSE = 0.3
"""A longer freeze than the program needs, in seconds."""
OF_ANOTHER_USER = f"import os, time\n{READY}\nos.setgid(1000)\nos.setuid(1000)\ntime.sleep(999)"


async def test_a_stopped_program_stays_stopped_and_goes_on_when_it_is_told(sleepy: Sleepy) -> None:
    """A v1 freezer does not let CRIU seize a process that a signal has stopped."""
    state = "ps -C python3 -o stat=,args= | grep program.py"
    guest = await started(sleepy, STOPPED, ready=f"{state} | grep -q ^T")
    host, box = sleepy.host, guest.box
    for _ in range(2):
        asleep = await sleepy.suspend(guest)
        await sleepy.resume(guest)
        await guest.goes_on(asleep["tick"])
        assert (await host.run(box, "sh", "-c", state)).out.startswith("T")
    assert (await host.run(box, "test", "-e", "/root/on")).status == 1
    await host.run(box, "sh", "-c", "pkill -CONT -f program.py")
    wait = "until test -e /root/on; do sleep 0.05; done"
    assert (await host.run(box, "timeout", "30", "sh", "-c", wait)).status == 0


async def test_a_stopped_program_of_a_box_that_runs_on_stays_stopped(sleepy: Sleepy) -> None:
    state = "ps -C python3 -o stat=,args= | grep program.py"
    guest = await started(sleepy, STOPPED, ready=f"{state} | grep -q ^T")
    await sleepy.host.backend.freeze(guest.box)
    await sleepy.host.backend.thaw(guest.box)
    await guest.goes_on()
    assert (await sleepy.host.run(guest.box, "sh", "-c", state)).out.startswith("T")
    assert (await sleepy.host.run(guest.box, "test", "-e", "/root/on")).status == 1


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (LEASED, r"`python3` \(pid \d+\) holds a lease on a file"),
        (TRACING, r"`python3` \(pid \d+\) is tracing `python3` \(pid \d+\)"),
        (HALF_CLOSED, r"a TCP connection within the box \(port 8099\) is closed in one direction"),
    ],
)
async def test_what_would_be_lost_is_refused_by_name(
    sleepy: Sleepy, program: str, sentence: str
) -> None:
    guest = await started(sleepy, program)
    backend = sleepy.host.backend
    await backend.freeze(guest.box)
    with pytest.raises(Conflict, match=sentence + ".*; the box stays awake"):
        await backend.save_memory(guest.box)
    await backend.thaw(guest.box)
    await guest.goes_on()


@pytest.mark.parametrize(("unix", "half_closed"), [(False, True), (False, False), (True, False)])
async def test_a_connection_in_motion_gets_the_time_to_pass(
    sleepy: Sleepy, unix: bool, half_closed: bool
) -> None:
    program = f"UNIX, HALF_CLOSED = {unix}, {half_closed}\n{AFTER_A_PAUSE}"
    guest = await started(sleepy, program)
    backend = sleepy.host.backend
    await backend.freeze(guest.box)
    await asyncio.sleep(PAUSE)
    await backend.save_memory(guest.box)
    await backend.stop(guest.box)
    await sleepy.resume(guest)
    await guest.goes_on()
    assert (await sleepy.host.run(guest.box, "test", "-e", "/root/passed")).status == 0


async def test_a_program_of_another_user_is_kept(sleepy: Sleepy) -> None:
    guest = await started(sleepy, OF_ANOTHER_USER)
    asleep = await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])
