"""The content of an archive: a manifest, files of the state directory, rows of the database.

The encrypted stream contains one JSON object per line, in this order::

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

from boxd.backup.encryption import CHUNK, DecryptingReader, EncryptingWriter
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.backup.keyfile import Key

CONTENT = 1
"""Version of the format above. An archive with a higher number comes from a newer release."""
MAX_LINE = 64 << 20
"""Maximum length of a line, in bytes."""
CATALOGS = ("images.toml", "flavors.toml", "tiers.toml")
"""Files of the state directory that the operator writes."""
FILE = re.compile(
    r"instance|keys/[A-Za-z0-9][A-Za-z0-9._-]{0,127}|" + "|".join(map(re.escape, CATALOGS))
)
"""Paths that an archive may contain. None of them leads out of the state directory."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first line of an archive.

    `content` is the format version, `schema` the version of the control schema, `instance` the id
    of the service and `made` the ISO time of the backup.
    """

    content: int
    schema: int
    instance: str
    made: str


@dataclass(frozen=True, slots=True)
class StateFile:
    """A private file of the state directory. `name` is its path relative to that directory."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of the control schema, as the text of a JSON object."""

    table: str
    row: str


class ArchiveWriter:
    """Writes one archive into a file: the manifest, then files, then rows, then `finish`."""

    def __init__(self, file: BinaryIO, key: Key, manifest: Manifest) -> None:
        self._stream = EncryptingWriter(file, key)
        self._line({"manifest": asdict(manifest)})

    def add_file(self, file: StateFile) -> None:
        """Add a file. Raises OSError, or ValueError if an archive may not contain its name."""
        if not FILE.fullmatch(file.name):
            raise ValueError(f"{file.name} cannot be part of a backup")
        self._line({"file": file.name, "data": base64.b64encode(file.data).decode("ascii")})

    def add_row(self, row: Row) -> None:
        """Add a row. Raises OSError."""
        self._line({"table": row.table, "row": json.loads(row.row)})

    def finish(self) -> None:
        """Complete the archive. Raises OSError."""
        self._stream.finish()

    def _line(self, content: dict[str, object]) -> None:
        self._stream.write(json.dumps(content, ensure_ascii=True).encode("ascii") + b"\n")


def read_archive(file: BinaryIO, key: Key, name: str) -> tuple[Manifest, Iterator[StateFile | Row]]:
    """Return the manifest and an iterator that reads the rest. `name` appears in errors.

    Both raise Unavailable if the file is not a backup, comes from a newer release, needs another
    key, or is damaged or truncated. The archive is proven complete only when the iterator ends.
    """
    lines = _lines(io.BufferedReader(DecryptingReader(file, key, name), CHUNK), name)
    first = next(lines, None)
    try:
        if first is None or not isinstance(fields := first.get("manifest"), dict):
            raise ValueError("no manifest")
        content = fields["content"]
        if not isinstance(content, int):
            raise TypeError("the manifest has no version number")
        if content > CONTENT:
            raise Unavailable(
                f"{name} has content version {content}, but this boxd reads up to {CONTENT}: "
                "use a newer boxd"
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
                raise ValueError(f"unexpected file {path!r}")
            yield StateFile(path, base64.b64decode(line["data"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise _malformed(name, error) from None


def _lines(stream: io.BufferedReader, name: str) -> Iterator[dict[str, Any]]:
    while text := stream.readline(MAX_LINE):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise _malformed(name, error) from None
        if not isinstance(line, dict):
            raise _malformed(name, TypeError("a line is not an object"))
        yield line


def _malformed(name: str, error: Exception) -> Unavailable:
    # The decryption proved that the key is right and that no byte changed since the archive was
    # written. So another program, or another version, wrote this content.
    return Unavailable(f"{name} has content that this boxd does not understand ({error})")
