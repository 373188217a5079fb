"""A file that names an object store for backups."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer


def store_file(folder: Path, server: ObjectServer, **changes: object) -> Path:
    """Write the description of the object server, as an operator would."""
    endpoint = server.endpoint
    content = {
        "endpoint": endpoint.url,
        "bucket": endpoint.bucket,
        "region": endpoint.region,
        "admin": {"access_key": endpoint.access_key, "secret_key": endpoint.secret.reveal()},
    }
    path = folder / f"store-{secrets.token_hex(4)}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content | changes))
    return path
