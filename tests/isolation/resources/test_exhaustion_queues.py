"""A box that queues all the signals and messages that it can: the host's programs keep a share.

The kernel counts them for the creator of the box's user namespace too, which is root of the host.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.service.pair import Pair, pair

__all__ = ["pair"]

SIGNALS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 2])
for user in range(1, 5):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setuid(user)
        while libc.sigqueue(os.getpid(), signal.SIGRTMIN + 2, None) == 0:
            pass
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
print("done", flush=True)
signal.pause()
"""
MESSAGES = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
attributes = (ctypes.c_long * 8)(0, 10, 1024)
number = 0
while libc.mq_open(b"/q%d" % number, os.O_CREAT | os.O_RDWR, 0o600, attributes) >= 0:
    number += 1
print("done", flush=True)
signal.pause()
"""
TIMER = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) == 0
"""
QUEUE = """
import ctypes, os
libc = ctypes.CDLL(None)
attributes = (ctypes.c_long * 8)(0, 10, 1024)
assert libc.mq_open(b"/boxd-test", os.O_CREAT | os.O_RDWR, 0o600, attributes) >= 0
libc.mq_unlink(b"/boxd-test")
"""


@pytest.mark.parametrize(
    ("attack", "need"), [(SIGNALS, TIMER), (MESSAGES, QUEUE)], ids=["signals", "messages"]
)
def test_programs_of_the_host_keep_a_share(pair: Pair, attack: str, need: str) -> None:
    with pair.attack(attack) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"done\n"
        done = subprocess.run([sys.executable, "-I", "-c", need], check=False, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    pair.recovers()
