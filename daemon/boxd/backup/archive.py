"""What is in an archive: a manifest, the files of the state directory, the rows of the database.

One JSON object a line, in this order, inside the encrypted stream::

    {"manifest": {"content": 1, "schema": 2, "instance": "...", "made": "..."}}
    {"file": "keys/master.key", "data": "<base64>"}
    {"table": "box", "row": {...}}
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from boxd.backup.encryption import CHUNK, OpeningReader, SealingWriter
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backup.keyfile import Key

CONTENT = 1
"""Number of the form above; an archive with a higher one is of a newer release."""
LONGEST = 64 << 20
"""Bytes of a line."""
CATALOGS = ("images.toml", "flavors.toml", "tiers.toml")
"""Files of the state directory that the operator wrote."""
FILE = re.compile(
    r"instance|keys/[A-Za-z0-9][A-Za-z0-9._-]{0,127}|" + "|".join(map(re.escape, CATALOGS))
)
"""Files of the state directory that an archive may hold; none leads out of it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`schema`: version of the control schema; `instance`: of the service; `made`: ISO time."""

    content: int
    schema: int
    instance: str
    made: str


@dataclass(frozen=True, slots=True)
class StateFile:
    """A private file of the state directory; `name` is its path in it."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of the control schema, as the text of a JSON object."""

    table: str
    row: str


class ArchiveWriter:
    """Writes one archive into a file: manifest, then files, then rows, then `finish`."""

    def __init__(self, file: BinaryIO, key: Key, manifest: Manifest) -> None:
        self._stream = SealingWriter(file, key)
        self._line({"manifest": asdict(manifest)})

    def add_file(self, file: StateFile) -> None:
        """Raises ValueError for a name that no archive may hold, OSError."""
        if not FILE.fullmatch(file.name):
            raise ValueError(f"not a file for a backup: {file.name}")
        self._line({"file": file.name, "data": base64.b64encode(file.data).decode("ascii")})

    def add_row(self, row: Row) -> None:
        """Raises OSError."""
        self._line({"table": row.table, "row": json.loads(row.row)})

    def finish(self) -> None:
        """Makes it whole. Raises OSError."""
        self._stream.finish()

    def _line(self, content: dict[str, object]) -> None:
        self._stream.write(json.dumps(content, ensure_ascii=True).encode("ascii") + b"\n")


def read_archive(file: BinaryIO, key: Key, name: str) -> tuple[Manifest, Iterator[StateFile | Row]]:
    """The manifest, and all the rest as it is read. `name` is for error texts.

    Both raise Unavailable: not a backup, of a newer release, of another key, damaged or cut off.
    That the archive is whole is known only when the iterator has ended.
    """
    lines = _lines(io.BufferedReader(OpeningReader(file, key, name), CHUNK), name)
    first = next(lines, None)
    try:
        if first is None or not isinstance(fields := first.get("manifest"), dict):
            raise ValueError("no manifest")
        content = fields["content"]
        if not isinstance(content, int):
            raise TypeError("the manifest has no number")
        if content > CONTENT:
            raise Unavailable(
                f"{name} has content of form {content}, this boxd knows {CONTENT}: use a newer boxd"
            )
        manifest = Manifest(
            content, int(fields["schema"]), str(fields["instance"]), str(fields["made"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(name, error) from None
    return manifest, _contents(lines, name)


def _contents(lines: Iterator[dict[str, Any]], name: str) -> Iterator[StateFile | Row]:
    for line in lines:
        try:
            if "table" in line:
                yield Row(str(line["table"]), json.dumps(line["row"]))
                continue
            path = str(line["file"])
            if not FILE.fullmatch(path):
                raise ValueError(f"a file {path!r}")
            yield StateFile(path, base64.b64decode(line["data"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise _malformed(name, error) from None


def _lines(stream: io.BufferedReader, name: str) -> Iterator[dict[str, Any]]:
    while text := stream.readline(LONGEST):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise _malformed(name, error) from None
        if not isinstance(line, dict):
            raise _malformed(name, TypeError("a line is not an object"))
        yield line


def _malformed(name: str, error: Exception) -> Unavailable:
    """The key was right and no byte was changed: who wrote it made something else."""
    return Unavailable(f"{name} holds what this boxd does not understand ({error})")
