"""Fixtures `objectserver` and `object_volume`: the real object server in its own process."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer, ObjectEndpoint
from tests.harness.loop import run
from wrkfs.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.secret import Secret


USER = 980_000_000 + os.getpid()
"""Id of the user of the server. Another process of the tests has another: a start of the server
ends all processes of its user."""


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """A running server: its endpoint with the administrator's credential, and its directory."""

    endpoint: ObjectEndpoint
    directory: Path

    def volume(self, prefix: str | None = None) -> StoreConfig:
        """Return a new credential for a prefix (default: a random one)."""
        prefix = prefix or f"v{secrets.token_hex(16)}"
        access_key, secret = run(_issue(self.directory, prefix))
        endpoint = self.endpoint
        return StoreConfig(
            endpoint.url, endpoint.bucket, prefix, endpoint.region, access_key, secret.reveal()
        )


@pytest.fixture(scope="session")
def objectserver() -> Iterator[ObjectServer]:
    """Yield a real object server for the whole run (one per worker)."""
    with tempfile.TemporaryDirectory(prefix="boxd-objects-") as name:
        directory = Path(name) / "objects"
        try:
            yield ObjectServer(run(_start(directory)), directory)
        finally:
            run(EmbeddedObjectServer(directory).stop())


@pytest.fixture
def object_volume(objectserver: ObjectServer) -> StoreConfig:
    """Return a credential for a new, empty prefix of the object server."""
    return objectserver.volume()


async def _start(directory: Path) -> ObjectEndpoint:
    server = EmbeddedObjectServer(directory, user=USER)
    endpoint = await server.start()
    await server.detach()
    return endpoint


async def _issue(directory: Path, prefix: str) -> tuple[str, Secret]:
    return await EmbeddedObjectServer(directory).issue(prefix)
