"""An object server that a test kills and restarts, and whose disk may fail."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from boxd.embedded.objectstore import EmbeddedObjectServer
from tests.harness.mounts.drive import until
from tests.harness.wait import until as until_async
from wrkfs.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from boxd.embedded.objectstore import ObjectEndpoint

PROGRAM = "tests.harness.servers.failing_objectserver"
WAIT = 30.0


class MortalServer:
    """An object server of one test, which the test kills and restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    async def prepare(self) -> StoreConfig:
        """Return a credential for a new prefix, before the server runs."""
        server = EmbeddedObjectServer(self.directory)
        endpoint: ObjectEndpoint = await server.start()
        try:
            key, secret = await server.issue("volume")
        finally:
            await server.stop()
        file = self.directory / "config.json"
        port = urlsplit(endpoint.url).port
        file.write_text(json.dumps({**json.loads(file.read_text()), "port": port}))
        return StoreConfig(
            endpoint.url, endpoint.bucket, "volume", endpoint.region, key, secret.reveal()
        )

    def start(self) -> None:
        """Start the server and wait until it serves."""
        state = self.directory / "server" / "state.json"
        state.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(self.directory / "config.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(state.exists, WAIT)
        assert json.loads(state.read_text())["pid"] == self._process.pid

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(WAIT)
            self._process = None

    async def quiet(self) -> None:
        """Wait until no request stores an object."""
        await until_async(lambda: not any((self.directory / "server" / "tmp").iterdir()))

    @contextlib.contextmanager
    def no_fsync(self) -> Iterator[None]:
        """Let every fsync fail within the context. No data reaches the disk; see also `quiet`."""
        mark = self.directory / "eio"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()
