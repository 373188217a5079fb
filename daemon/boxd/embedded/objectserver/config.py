"""Configuration of the object server's process: a JSON file, mode 0600."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

BUCKET = "drive"
REGION = "us-east-1"
MAX_CONNECTIONS = 2048


class BadConfiguration(Exception):
    """The configuration file is unreadable or has wrong fields."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the process is told. `port` 0 lets the kernel choose at the first start.

    Below `directory` stand `data/`, `tmp/`, `uploads/`, `keys.json`, `admin` (socket), `state.json`
    (pid, start time and port of the running process) and `lock`.
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
        """The directory as a path."""
        return Path(self.directory)

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_file(cls, path: Path) -> ServerConfig:
        """Reads the file. Raises BadConfiguration."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadConfiguration(f"{path}: {type(error).__name__}") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or not raw.keys() <= names or "directory" not in raw:
            raise BadConfiguration(f"{path}: wrong fields")
        return cls(**raw)
