"""Makes an agent's tunnel ready to dial, copies the process twice, and prints a key of each copy.

To be run as the first process of a process namespace: the copies are first processes of their own
ones, so that nothing tells them from what they are copied from.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from pathlib import Path
from signal import SIGCHLD

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from box_guest import agent, config, link, sshd, tunnel
from box_guest.forward import ForwardDir
from box_guest.process import Reaper

SYS_CLONE = 56
CLONE_NEWPID = 0x20000000


def drawn_key() -> str:
    """What a key exchange shows of its secret."""
    return X25519PrivateKey.generate().public_key().public_bytes_raw().hex()


async def ready(run_dir: Path) -> tunnel.Dialler:
    """Everything up to the dialling."""
    agent.prepare_box()
    services = sshd.Services(
        config.load(run_dir),
        link.DaemonLink({}),
        Reaper(),
        ForwardDir(run_dir / "forward"),
        lambda work: work.close(),
    )
    return tunnel.Dialler(run_dir / "none.sock", services, lambda: False)


def copy() -> None:
    """One copy of this process, which prints its key. No handler learns that there was a fork."""
    child = ctypes.CDLL(None, use_errno=True).syscall(SYS_CLONE, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        print(drawn_key(), flush=True)
        os._exit(0 if os.getpid() == 1 else 9)
    if child < 0:
        raise OSError(ctypes.get_errno(), "clone")
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"a copy ended with {status}")


def main() -> None:
    """`clones.py RUN_DIR drawn|fresh`."""
    if os.getpid() != 1:
        sys.exit("not the first process")
    dialler = asyncio.run(ready(Path(sys.argv[1])))
    if sys.argv[2] == "drawn":
        drawn_key()
    copy()
    copy()
    del dialler


if __name__ == "__main__":
    main()
