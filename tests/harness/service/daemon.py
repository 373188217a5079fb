"""A real daemon as a process: `boxd serve` on a state directory of the test.

`daemon` (scope: module) starts with an existing image. All its objects are removed afterwards.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.config import Config
from tests.harness.boxes.backend import IMAGES_DIR, tell_verdict
from tests.harness.nursery import nursery
from tests.harness.service.processes import reap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.harness.nursery import Started

BOXD = (sys.executable, "-m", "boxd")
SERVICE = ("boxd.service", "boxd.doctor")
"""Modules that `boxd serve` loads at its start."""
START_S = 120.0
STOP_S = 90.0
# The first form is that of the log as text, the second one that of the log in JSON.
_READY = re.compile(r'Ctrl-C stops everything|"message": "boxd is serving".*\n')
_SSH = re.compile(r'(?:ssh -p |"ssh": "127\.0\.0\.1:)(\d+)(?: dev@|")')
_API = re.compile(r'(?:http://|"api": ")127\.0\.0\.1:(\d+)(?:/v1/wrk/|")')


@dataclass
class Daemon:
    """One state directory and, while it runs, its daemon."""

    state: Path
    process: Started | None = None
    ssh_port: int = 0
    api_port: int = 0
    flags: list[str] = field(default_factory=lambda: ["--workspace-automount"])
    backend: list[str] = field(default_factory=list)
    """Flags that select the backend; every command gets them."""
    program: tuple[str, ...] = ("boxd",)
    """The program that serves: a module, and arguments before the command."""
    prepared: int = 0
    """Number of prepared boxes. They come and go in the background."""
    addresses: tuple[str, str] = ("127.0.0.1:0", "127.0.0.1:0")
    """Addresses of SSH and HTTP."""

    @property
    def _here(self) -> list[str]:
        return ["--state-dir", str(self.state), *self.backend]

    @property
    def log(self) -> Path:
        """Return the daemon's output since its last start."""
        return self.state.parent / "log"

    @property
    def instance(self) -> str:
        """Return the digits in the names of its host objects."""
        return Config(state_dir=self.state).instance

    def start(self) -> float:
        """Start and wait until the daemon serves; return the seconds.

        A failure shows the output.
        """
        began = time.monotonic()
        ssh_addr, api_addr = self.addresses
        addresses = ["--ssh-addr", ssh_addr, "--api-addr", api_addr]
        addresses += ["--boxes-size", "1G", "--prepared-boxes", str(self.prepared)]
        with self.log.open("wb") as log:
            module, *first = self.program
            self.process = nursery(module, *SERVICE).start(
                [*first, "serve", *self._here, *addresses, *self.flags],
                log=log.fileno(),
                new_session=True,
            )
        while _READY.search(text := self.log.read_text()) is None:
            assert self.process.poll() is None, f"the daemon ended:\n{text}"
            assert time.monotonic() - began < START_S, f"the daemon does not serve:\n{text}"
            time.sleep(0.02)
        ssh, api = _SSH.search(text), _API.search(text)
        assert ssh is not None
        assert api is not None
        self.ssh_port, self.api_port = int(ssh[1]), int(api[1])
        return time.monotonic() - began

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the daemon and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(STOP_S)
        wanted = -signal.SIGKILL if number is signal.SIGKILL else 0
        assert status == wanted, self.log.read_text()
        self.process = None
        if number is signal.SIGKILL:
            reap()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another `boxd` command on the same state directory."""
        command, *rest = arguments
        words = [command, *rest, *self._here]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            started = nursery("boxd", *SERVICE).start(words, log=errors.fileno(), out=out.fileno())
            try:
                status = started.wait(STOP_S)
            finally:
                started.kill()
                started.wait()
            out.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(words, status, out.read(), errors.read())

    def processes(self) -> list[str]:
        """Return command lines of live processes that belong to the state directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(self.state) in line or where.startswith(str(self.state)):
                found.append(line)
        return found

    def left_overs(self) -> list[str]:
        """Return host objects of this installation's boxes, drives and servers."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found = [line for line in mounts if str(self.state) in line]
        found += [f"netns {p.name}" for p in Path("/run/netns").glob(f"boxd-{self.instance}-*")]
        tables = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True)
        if f"boxd_{self.instance}" in tables.stdout.decode():
            found.append("nft table")
        return found + self.processes()

    def boxes(self) -> list[Path]:
        """Return the directories of boxes."""
        return sorted((self.state / "boxes").glob("*"))


@pytest.fixture(scope="module")
def daemon(image_rootfs: Path) -> Iterator[Daemon]:
    """Yield a serving daemon; its image and guest runtime are those of earlier runs."""
    with open_daemon(image_rootfs) as made:
        yield made


@contextmanager
def open_daemon(
    image_rootfs: Path, backend: Sequence[str] = (), flags: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Yield a serving daemon and remove all its objects afterwards.

    `backend` has flags for every command.
    """
    with installation(image_rootfs, backend, flags) as made:
        made.start()
        yield made


@contextmanager
def installation(
    image_rootfs: Path, backend: Sequence[str] = (), flags: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Yield a state directory that was never served, with image and runtime of earlier runs."""
    folder = Path(tempfile.mkdtemp(prefix="boxd-"))
    state = folder / "state"
    # The service removes runtimes of other versions, which another checkout may use.
    checkout = hashlib.sha256(bytes(Path(__file__))).hexdigest()[:8]
    runtimes = IMAGES_DIR.parent / f"runtime-{checkout}"
    runtimes.mkdir(exist_ok=True)
    (state / "images" / "debian").mkdir(parents=True)
    state.chmod(0o700)
    tell_verdict(state)
    (state / "images" / "debian" / "rootfs").symlink_to(image_rootfs)
    (state / "runtime").symlink_to(runtimes)
    made = Daemon(state, backend=list(backend))
    made.flags += flags
    try:
        yield made
    finally:
        if made.process is not None:
            made.process.kill()
            made.process.wait(STOP_S)
        done = made.run("down")
        left = made.left_overs()
        shutil.rmtree(folder)
        assert done.returncode == 0, done.stderr
        assert left == []
