"""Configuration of one volume, and its credential file.

The credentials are a JSON file with mode 0600, or arrive on an inherited pipe. They contain
secrets: never pass them on a command line or in the environment.
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
    """The credential file cannot be read, is readable by other users, or has wrong fields."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The object store of a volume. `prefix` has no trailing slash and begins every key."""

    endpoint: str
    bucket: str
    prefix: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VolumeConfig:
    """Database, object store and credentials of one volume.

    `meta_dsn` is the PostgreSQL connection string of the volume's own role, `schema` its schema.
    """

    volume: str
    schema: str
    meta_dsn: str = field(repr=False)
    store: StoreConfig = field(repr=False)

    def to_json(self) -> str:
        """Return the text of the credential file. It contains secrets."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> VolumeConfig:
        """Parse the text of a credential file. Raises ConfigError, which names the wrong field."""
        try:
            raw = json.loads(text)
        except ValueError:
            raise ConfigError("the credentials are not JSON") from None
        _check_fields(cls, raw, "credentials")
        _check_fields(StoreConfig, raw["store"], "credentials: store")
        return cls(**{**raw, "store": StoreConfig(**raw["store"])})

    @classmethod
    def from_file(cls, path: Path) -> VolumeConfig:
        """Read a credential file. Raises ConfigError if it is invalid or others can read it."""
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
    """Limits of one Filesystem on its host, in bytes.

    `blocks`: cached blocks in memory. `dirty`: bytes that are written and not committed; at the
    limit writers wait. `disk`: size of the disk cache below `cache_dir`; without a directory or
    with 0 there is no disk cache. With `durable_close` a file's bytes survive a power failure of
    the host once it is closed, and no change is delayed.
    """

    blocks: int = 64 * MIB
    dirty: int = 128 * MIB
    disk: int = 0
    cache_dir: Path | None = None
    durable_close: bool = False


def _check_fields(cls: type, raw: object, where: str) -> None:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: not an object")
    names = {f.name for f in fields(cls)}
    for name in sorted(names ^ raw.keys()):
        problem = "missing" if name in names else "unknown"
        raise ConfigError(f"{where}: {problem} field {name!r}")
    for name in sorted(names - {"store"}):
        if not isinstance(raw[name], str):
            raise ConfigError(f"{where}: field {name!r} is not a string")
