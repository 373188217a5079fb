"""The agent outlives nonsense that is said to its file transfers, and so does the box.

In a box that is one: what a spoilt packet removes or writes over is the box's.
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.fuzz.judged import OFFENCES
from tests.fuzz.mutations import bent, disordered, pieces
from tests.fuzz.wire import number, string
from tests.harness.service.user import User
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon
    from tests.plugins.figures import Figures

PACKETS = 40
"""Of one session."""
AT_ONCE = 8
END_S = 120.0
INIT = b"\x01" + number(3)
DIRECTORY = "/root/nonsense"
PATHS = (b"file", b"other", b"link", b"", b".", b"..", b"/", b"\xff\n", b"x" * 300)
FLAGS = (0x01, 0x02, 0x1A, 0x2A, 0x3B, 0xFFFF)
"""Of open: read, write, create, truncate, append, exclusively."""
EXTENSIONS = (
    *(b"posix-rename@openssh.com", b"statvfs@openssh.com", b"fstatvfs@openssh.com"),
    *(b"hardlink@openssh.com", b"fsync@openssh.com", b"lsetstat@openssh.com"),
    *(b"limits@openssh.com", b"copy-data", b"nonsense"),
)
USED = "ls /proc/1/fd | wc -l; ls /proc/1/task | wc -l"


def packet(random: Random, sequence: int) -> bytes:
    """What a client may say, with a path below one directory, or a handle that may be one."""
    handle = string(number(random.randrange(4)))
    path = string(DIRECTORY.encode() + b"/" + random.choice(PATHS))
    where = number(0) + number(random.choice((0, 1, 1 << 20)))
    size = number(random.choice((0, 1, 4096, 1 << 31)))
    attributes = number(0x4) + number(0o644)
    named = {
        3: path + number(random.choice(FLAGS)) + attributes,
        4: handle,
        5: handle + where + size,
        6: handle + where + string(random.randbytes(random.choice((0, 7, 30000)))),
        8: handle,
        9: path + attributes,
        10: handle + number(0x1) + where,
        12: handle,
        14: path + number(0),
        18: path + string(DIRECTORY.encode() + b"/other"),
        20: string(b"../nowhere") + path,
        200: string(random.choice(EXTENSIONS)) + random.choice((handle, path + path)) + where,
    }
    kind = random.choice((*range(3, 21), 200))
    return bytes([kind]) + number(sequence) + named.get(kind, path)


def session(seed: int) -> bytes:
    """Everything that one client says: spoilt packets, and now and then spoilt lengths."""
    random = Random(seed)
    packets = [INIT] + [packet(random, sequence) for sequence in range(PACKETS)]
    if random.random() < 0.2:
        packets = disordered(random, packets)
    share = random.choice((0.1, 0.3, 1.0))
    said = [string(bent(random, one) if random.random() < share else one) for one in packets]
    if random.random() < 0.2:
        place = random.randrange(len(said))
        said[place] = bent(random, said[place])
    return b"".join(said)


def run(user: User, seed: int) -> None:
    """A session to its end; the end of its input must be one."""
    *command, host, _ = user.command("web", "")
    with subprocess.Popen(
        [*command, "-s", host, "sftp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as client:
        try:
            assert client.stdin is not None
            for piece in pieces(Random(seed), session(seed)):
                client.stdin.write(piece)
            client.stdin.close()
        except BrokenPipeError:
            pass  # it was cut off
        try:
            client.wait(END_S)
        finally:
            client.kill()


@pytest.mark.timeout(300)
@pytest.mark.figure("FZ-3")
def test_nonsense_for_file_transfers(daemon: Daemon, tmp_path: Path, figures: Figures) -> None:
    user = User(daemon, tmp_path)
    user.ssh("web", f"mkdir {DIRECTORY}")
    run(user, -1)
    before = used(user)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(lambda seed: run(user, seed), figures(ci=25, long=5000)):
            pass
    deadline = time.monotonic() + DEADLINE
    while not before.covers(after := used(user)):
        assert time.monotonic() < deadline, (before, after)
    for log in (daemon.log, *(daemon.state / "boxes").glob("*/log")):
        text = log.read_text(errors="replace")
        assert not [word for word in OFFENCES if word in text], text
    assert user.ssh("web", f"echo still here | tee {DIRECTORY}.txt") == "still here"
    _, *options, _, port, host, _ = user.command("web", "")
    copied, got = f"{host}:{DIRECTORY}.txt", tmp_path / "got"
    subprocess.run(["scp", *options, "-P", port, copied, got], check=True, timeout=60)
    assert got.read_text() == "still here\n"


class Used(NamedTuple):
    """By the agent."""

    descriptors: int
    threads: int

    def covers(self, other: Used) -> bool:
        """Whether the other is no more."""
        return self.descriptors >= other.descriptors and self.threads >= other.threads


def used(user: User) -> Used:
    """What the agent uses now."""
    return Used(*map(int, user.ssh("web", USED).split()))
