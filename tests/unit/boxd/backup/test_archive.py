"""What archives hold, and what they may not hold."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from boxd.backup.archive import CONTENT, ArchiveWriter, Manifest, Row, StateFile, read_archive
from boxd.backup.encryption import CHUNK, EncryptingWriter
from boxd.backup.keyfile import Key
from boxd.errors import Unavailable

KEY = Key(bytes(range(32)), Path("key"))
MANIFEST = Manifest(CONTENT, 2, "f" * 32, "2026-01-02T03:04:05+00:00")
ITEMS: list[StateFile | Row] = [
    StateFile("instance", b"f" * 32),
    StateFile("keys/master.key", bytes(range(256))),
    Row("box", json.dumps({"id": "a", "cpus": 0.1, "name": "bücher\n\u2028"})),
    Row("setting", json.dumps({"name": "x", "value": None})),
]


def written(manifest: Manifest = MANIFEST, *items: StateFile | Row) -> io.BytesIO:
    """An archive, at its beginning."""
    file = io.BytesIO()
    writer = ArchiveWriter(file, KEY, manifest)
    for item in items:
        if isinstance(item, StateFile):
            writer.add_file(item)
        else:
            writer.add_row(item)
    writer.finish()
    file.seek(0)
    return file


def of_lines(*lines: bytes) -> io.BytesIO:
    """An archive of lines that our writer would not write."""
    file = io.BytesIO()
    writer = EncryptingWriter(file, KEY)
    writer.write(b"".join(line + b"\n" for line in lines))
    writer.finish()
    file.seek(0)
    return file


def read(file: io.BytesIO) -> tuple[Manifest, list[StateFile | Row]]:
    """All of an archive."""
    manifest, items = read_archive(file, KEY, "a.backup")
    return manifest, list(items)


def test_what_was_written_is_read() -> None:
    manifest, items = read(written(MANIFEST, *ITEMS))
    assert manifest == MANIFEST
    assert items[:2] == ITEMS[:2]
    rows = [json.loads(item.row) for item in items if isinstance(item, Row)]
    assert rows == [json.loads(item.row) for item in ITEMS if isinstance(item, Row)]


def test_many_rows_come_back_in_order() -> None:
    rows = [Row("box", json.dumps({"n": n, "text": "x" * 100})) for n in range(3000)]
    file = written(MANIFEST, *rows)
    assert file.getbuffer().nbytes > 4 * CHUNK
    assert read(file)[1] == rows


def test_content_of_a_newer_release_is_refused() -> None:
    with pytest.raises(Unavailable, match="use a newer boxd"):
        read(written(replace(MANIFEST, content=CONTENT + 1)))


@pytest.mark.parametrize(
    "name", ["../x", "keys/../../x", "keys/a/b", "/etc/passwd", "keys/.hidden", "keys/", "boxes/a"]
)
def test_no_file_leads_out_of_the_state_directory(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a backup"):
        written(MANIFEST, StateFile(name, b""))
    line = json.dumps({"file": name, "data": ""}).encode()
    head = json.dumps({"manifest": {"content": 1, "schema": 1, "instance": "a", "made": ""}})
    with pytest.raises(Unavailable, match="does not understand"):
        read(of_lines(head.encode(), line))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"no json"],
        [b"[]"],
        [b'{"manifest": 1}'],
        [b'{"manifest": {"content": "1"}}'],
        [b'{"file": "instance", "data": ""}'],
    ],
)
def test_what_is_no_archive_within_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(Unavailable, match="does not understand"):
        read(of_lines(*lines))


@pytest.mark.parametrize("line", [b"{}", b'{"file": "instance", "data": "%"}', b'{"table": "x"}'])
def test_lines_that_are_neither_file_nor_row_are_refused(line: bytes) -> None:
    head = json.dumps({"manifest": {"content": 1, "schema": 1, "instance": "a", "made": ""}})
    with pytest.raises(Unavailable, match="does not understand"):
        read(of_lines(head.encode(), line))
