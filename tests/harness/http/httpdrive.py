"""Fixture `http_drive`: the test's volume over the real HTTP API on loopback.

The server has its own thread and event loop. So a test can mix requests with blocking calls on
mounts, from any number of threads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.harness.http.web import ALICE, serve_web
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wrkfs.config import VolumeConfig

TIMEOUT = 100.0
"""Seconds for one answer. Each call of the drive may take up to 90 s."""
START_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer of the API; header names are in lower case."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def etag(self) -> str:
        """Return the entity tag, or an empty text without one."""
        return self.headers.get("etag", "")


class HttpDrive:
    """A blocking client of the served drive; each thread has its own connection."""

    def __init__(self, host: str, port: int, key: str, top: str = "") -> None:
        """`top` is a directory of the drive; all paths are relative to it."""
        self._place = (host, port)
        self._key = key
        self._top = top
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def below(self, top: str) -> HttpDrive:
        """Return the same drive, relative to one of its directories."""
        seen = HttpDrive(*self._place, self._key, f"{self._top}{quote(top)}/")
        seen._connections = self._connections
        return seen

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> HttpAnswer:
        """Send one request. Names of headers have `_` instead of `-`."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(*self._place, timeout=TIMEOUT)
            self._local.connection = connection
            self._connections.append(connection)
        lines = {name.replace("_", "-"): value for name, value in headers.items()}
        lines["authorization"] = f"Bearer {self._key}"
        if body is not None:
            lines["content-length"] = str(len(body))
        target = f"/v1/wrk/{self._top}{quote(path, encoding='utf-8', errors='surrogateescape')}"
        connection.request(method, target, body, lines)
        response = connection.getresponse()
        got = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, response.read(), got)

    def put(self, path: str, body: bytes, **headers: str) -> HttpAnswer:
        """Replace a file. The answer must be 201 or 204, unless the request has a condition."""
        answer = self.ask("PUT", path, body, **headers)
        assert headers or answer.status in (201, 204), answer
        return answer

    def get(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist."""
        answer = self.ask("GET", path)
        assert answer.status in (200, 404), answer
        return answer.body if answer.status == 200 else None

    def entries(self, path: str = "") -> dict[str, tuple[bool, int]] | None:
        """Return (is a directory, size) by name in a directory, or None if it does not exist."""
        answer = self.ask("GET", path)
        assert answer.status in (200, 404), answer
        if answer.status == 404:
            return None
        found = json.loads(answer.body)["entries"]
        return {entry["name"]: (entry["is_dir"], entry["size"]) for entry in found}

    def delete(self, path: str) -> bool:
        """Remove a file or a tree; return False if it does not exist."""
        answer = self.ask("DELETE", path)
        assert answer.status in (204, 404), answer
        return answer.status == 204

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


class Server:
    """The API and its Filesystem, which run in a thread."""

    def __init__(self, volume: VolumeConfig) -> None:
        self._volume = volume
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="http drive")
        self.client: HttpDrive | None = None
        self.error: BaseException | None = None

    def start(self) -> HttpDrive:
        """Start the server; return a client as soon as the server answers."""
        self._thread.start()
        assert self._started.wait(START_TIMEOUT)
        if self.error is not None:
            raise self.error
        assert self.client is not None
        return self.client

    def stop(self) -> None:
        """End server, session and thread; raise the error that ended them, if any."""
        if self.client is not None:
            self.client.close()
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_TIMEOUT)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with tempfile.TemporaryDirectory(prefix="web-") as name:
            async with serve_web(Path(name)) as web:
                web.drives.given[ALICE.owner, None] = await Filesystem.connect(
                    self._volume, kind="http"
                )
                self.client = HttpDrive(web.address.host, web.address.port, web.key)
                self._started.set()
                await self._stop.wait()


@pytest.fixture
def http_drive(volume: VolumeConfig) -> Iterator[HttpDrive]:
    """Yield a client of the test's volume."""
    server = Server(volume)
    client = server.start()
    try:
        yield client
    finally:
        server.stop()
