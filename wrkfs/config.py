"""Configuration of one volume and the file it travels in.

The credential file is JSON, mode 0600, or arrives on an inherited pipe. It holds secrets: never
pass its content on a command line or in the environment.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


class ConfigError(Exception):
    """The credential file is unreadable, readable by others, or has wrong fields."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where a volume's blocks live. `prefix` has no trailing slash; every key is below it."""

    endpoint: str
    bucket: str
    prefix: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VolumeConfig:
    """Everything a process needs to serve one volume.

    `meta_dsn` is the PostgreSQL connection string of the volume's own role; `schema` its schema.
    """

    volume: str
    schema: str
    meta_dsn: str = field(repr=False)
    store: StoreConfig = field(repr=False)

    def to_json(self) -> str:
        """The credential file's text. Contains secrets."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> VolumeConfig:
        """Parses a credential file's text; raises ConfigError naming the wrong field."""
        try:
            raw = json.loads(text)
        except ValueError:
            raise ConfigError("the credentials are not JSON") from None
        _check_fields(cls, raw, "credentials")
        _check_fields(StoreConfig, raw["store"], "credentials: store")
        return cls(**{**raw, "store": StoreConfig(**raw["store"])})

    @classmethod
    def from_file(cls, path: Path) -> VolumeConfig:
        """Reads a credential file; refuses one that group or others can read."""
        try:
            with path.open(encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                if stat.S_IMODE(mode) & 0o077:
                    raise ConfigError(f"{path}: readable by others; run: chmod 600 {path}")
                return cls.from_json(file.read())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one Filesystem may take of its host, in bytes.

    `blocks`: cached blocks in memory. `dirty`: written and not yet committed; writers wait above
    it. `disk`: the disk cache below `cache_dir`; None keeps none.
    """

    blocks: int = 64 * MIB
    dirty: int = 128 * MIB
    disk: int = 0
    cache_dir: Path | None = None


def _check_fields(cls: type, raw: object, where: str) -> None:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: not an object")
    wanted = {f.name for f in fields(cls)}
    for name in sorted(wanted ^ raw.keys()):
        problem = "missing" if name in wanted else "unknown"
        raise ConfigError(f"{where}: {problem} field {name!r}")
    for name in sorted(wanted - {"store"}):
        if not isinstance(raw[name], str):
            raise ConfigError(f"{where}: field {name!r} is not a string")
