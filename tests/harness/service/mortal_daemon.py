"""Fixture `mortal`: a real `boxd serve` with real boxes that dies at a given step.

`mortal_main` is its program. Its boxes can be suspended; tests fail on a machine where they cannot.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import cgroups
from boxd.backends.host.names import HostNames
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import STOP_S, Daemon, installation
from tests.harness.service.downfall import go_down

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from boxd.backends.checkpoint import criu


@dataclass
class Mortal:
    """One daemon and the directory with its commands."""

    daemon: Daemon
    hand: Path

    @property
    def names(self) -> HostNames:
        """Return the names of its host objects."""
        return HostNames(self.daemon.instance, self.daemon.state.resolve())

    def tell(self, file: str, value: object) -> None:
        """Write a value to a file of the directory, atomically."""
        new = self.hand / f".{file}"
        new.write_text(str(value))
        new.rename(self.hand / file)

    def steps(self) -> list[tuple[float, str]]:
        """Return all steps since the first start, with the times of the daemon's clock."""
        lines = (self.hand / "steps").read_text().splitlines()
        return [(float(when), step) for when, _, step in (line.partition(" ") for line in lines)]

    def die_at(self, step: str, command: Sequence[str]) -> None:
        """Run a program whose request brings the daemon to that step, where it must die."""
        self.tell("end-at", step)
        asking = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: self._dead() or asking.poll() is not None, STOP_S)
            # The daemon does some steps after its answer.
            until(self._dead, STOP_S)
        except TimeoutError:
            asking.kill()
            pytest.fail(f"it did not come to {step}: {asking.communicate()[0].decode()}")
        finally:
            (self.hand / "end-at").unlink()
            if asking.poll() is None:
                asking.terminate()
            asking.communicate(timeout=STOP_S)

    def reboot(self) -> None:
        """Simulate a reboot of the host: the boot id changes. The caller starts the daemon."""
        assert self.daemon.process is not None
        go_down(self.names)
        self.daemon.process.wait(STOP_S)
        self.daemon.process = None
        self.tell("boot", secrets.token_hex(16))
        self.tell("elapsed", 5 - time.clock_gettime(time.CLOCK_BOOTTIME))

    def _dead(self) -> bool:
        process = self.daemon.process
        if process is None or process.poll() is None:
            return process is None
        self.daemon.process = None
        return True

    def pids(self, box_id: str) -> dict[int, str]:
        """Return the processes of a box on the host: pid -> command line."""
        found = {}
        for pid in cgroups.pids_of(cgroups.detect(), self.names.cgroup(box_id)):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[pid] = line.replace(b"\0", b" ").decode().strip()
        return found


@contextmanager
def open_mortal(image_rootfs: Path, flags: Sequence[str] = ()) -> Iterator[Mortal]:
    """Yield a serving daemon with commands; remove all its objects afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="hand-") as directory,
        installation(image_rootfs, flags=flags) as daemon,
    ):
        daemon.program = ("tests.harness.service.mortal_main", directory)
        daemon.start()
        yield Mortal(daemon, Path(directory))


@pytest.fixture(scope="module")
def mortal(image_rootfs: Path, verdict: criu.Verdict) -> Iterator[Mortal]:
    """Yield a daemon whose boxes boot and are no copies."""
    assert verdict.suspends
    assert os.geteuid() == 0
    with open_mortal(image_rootfs, ["--no-templates"]) as made:
        yield made
