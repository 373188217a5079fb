"""Draws a key, copies the process twice, and prints a key that each copy draws.

To be run as the first process of a process namespace: the copies are first processes of their own
ones, so that nothing tells them from what they are copied from.
"""

from __future__ import annotations

import ctypes
import os
import sys
from signal import SIGCHLD

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from box_guest.control.randomness import reseed

SYS_CLONE = 56
CLONE_NEWPID = 0x20000000


def drawn_key() -> str:
    """What a key exchange shows of its secret."""
    return X25519PrivateKey.generate().public_key().public_bytes_raw().hex()


def copy(*, reseeding: bool) -> None:
    """One copy of this process, which prints its key. No handler learns that there was a fork."""
    child = ctypes.CDLL(None, use_errno=True).syscall(SYS_CLONE, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        if reseeding:
            reseed()
        print(drawn_key(), flush=True)
        os._exit(0 if os.getpid() == 1 else 9)
    if child < 0:
        raise OSError(ctypes.get_errno(), "clone")
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"a copy ended with {status}")


def main() -> None:
    """`clones.py reseeding|as-they-are`."""
    if os.getpid() != 1:
        sys.exit("not the first process")
    drawn_key()
    for _ in range(2):
        copy(reseeding=sys.argv[1] == "reseeding")


if __name__ == "__main__":
    main()
