"""Runs Debian's SSH server, which `scripts/openssh` unpacks, in a realistic configuration.

The server runs as root in its own mount and pid namespace. So it does not change the machine, and
it ends with the benchmark. Users log in with a key, and have an empty home directory.
"""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.e2e.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".build/openssh/root"
START_S, END_S = 30.0, 5.0
NOBODY = "sshd:x:104:65534::/run/sshd:/usr/sbin/nologin"
"""The user of sshd before authentication."""
SETTINGS = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
PrintMotd no
MaxStartups 500
Subsystem sftp {unpacked}/usr/lib/openssh/sftp-server
"""
START = """\
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs -o mode=755 none /run
mkdir /run/sshd
exec "$2/usr/sbin/sshd" -D -e -f "$1/settings"
"""


@dataclass(frozen=True)
class Sshd:
    """A running server."""

    port: int
    process: psutil.Process
    """The listening process."""

    def cpu_s(self) -> float:
        """Wait shortly for the end of all connections; return the total processor time."""
        end = time.monotonic() + END_S
        while self.process.children() and time.monotonic() < end:
            time.sleep(0.01)
        times = self.process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system


@contextmanager
def sshd(directory: Path, public_key: Path) -> Iterator[Sshd]:
    """Run a server in which root can log in with the key. Raises RuntimeError.

    The files of the server are in `directory`.
    """
    subprocess.run([ROOT / "scripts/openssh"], check=True)
    port = free_port()
    _prepare(directory, public_key, port)
    libraries = f"{UNPACKED}/lib/x86_64-linux-gnu:{UNPACKED}/usr/lib/x86_64-linux-gnu"
    command = ["setpriv", "--pdeathsig", "KILL"]
    command += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["sh", "-euc", START, "sshd", str(directory), str(UNPACKED)]
    with (directory / "log").open("wb") as log:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": libraries},
        )
    try:
        _wait(started, port, directory / "log")
        (listening,) = psutil.Process(started.pid).children()
        yield Sshd(port, listening)
    finally:
        _end(started)


def _end(started: subprocess.Popen[bytes]) -> None:
    # The death of the first process of the namespace kills all others, and its parent ends, too.
    if started.poll() is None:
        children = psutil.Process(started.pid).children()
        for child in children:
            child.kill()
        if not children:
            started.kill()
        started.wait()


def _prepare(directory: Path, public_key: Path, port: int) -> None:
    home = directory / "home"
    home.mkdir(parents=True)
    (directory / "authorized").write_bytes(public_key.read_bytes())
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "host_key")]
    subprocess.run(command, check=True)
    others = (
        line
        for line in Path("/etc/passwd").read_text().splitlines()
        if not line.startswith(("root:", "sshd:"))
    )
    users = [f"root:x:0:0:root:{home}:/bin/bash", NOBODY, *others]
    (directory / "passwd").write_text("\n".join(users) + "\n")
    settings = SETTINGS.format(port=port, directory=directory, unpacked=UNPACKED)
    (directory / "settings").write_text(settings)


def _wait(started: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if started.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"sshd does not start: {log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
