"""Configuration of the object server's process: a JSON file, mode 0600."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

BUCKET = "drive"
"""Name of the server's only bucket."""
REGION = "us-east-1"
"""Region that clients must sign for."""
MAX_CONNECTIONS = 2048
"""Maximum number of concurrent connections; further ones get the error SlowDown."""


class BadConfiguration(Exception):
    """The configuration file is unreadable or has wrong fields; the text names the file."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of the process. With `port` 0 the kernel chooses the port at the first start.

    `directory` contains `data/`, `tmp/`, `uploads/`, `keys.json`, `admin` (socket), `state.json`
    (pid, start time and port of the running process) and `lock`. `unsigned_payload` allows uploads
    whose body is not signed.
    """

    directory: str
    host: str = "127.0.0.1"
    port: int = 0
    bucket: str = BUCKET
    region: str = REGION
    unsigned_payload: bool = True
    max_connections: int = MAX_CONNECTIONS

    @property
    def root(self) -> Path:
        """`directory` as a path."""
        return Path(self.directory)

    def to_json(self) -> str:
        """Return the content of the configuration file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_file(cls, path: Path) -> ServerConfig:
        """Read the configuration file. Raises BadConfiguration."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadConfiguration(f"{path}: {type(error).__name__}") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or not raw.keys() <= names or "directory" not in raw:
            raise BadConfiguration(f"{path}: unknown or missing fields")
        return cls(**raw)
