"""Generates the project of the real works: its files, an archive, and a repository.

The same number of files gives the same bytes on every machine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
from typing import TYPE_CHECKING

from wrkfs.bench.tools import git

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DECILES = (150, 400, 800, 1400, 2200, 3400, 5200, 8200, 14000, 26000, 90000)
"""Deciles of the file sizes in bytes, similar to those of a project of source code."""
SUFFIXES = (".py", ".py", ".py", ".js", ".json", ".md")
FOLDER = 12
"""Files in one directory."""
GROUP = 8
"""Directories in one directory above them."""
VOCABULARY = (
    "return self value index class count buffer result for while import handler request response "
    "if else None True offset length node parent child entry cache write read open close raise "
    "error message config state update remove insert lookup table column name path file block"
)
WORDS = VOCABULARY.split()
CORPUS = 1 << 20
"""Bytes of text from which the files are cut."""
LINE_WORDS = 9
COMMITS = 20
"""Commits in which the files arrive. One more commit changes a tenth of them."""
MODIFIED = 946684800
"""The modification time of all files in the archive."""


def files(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of `count` files."""
    text = _corpus()
    for number in range(count):
        yield _name(number), _content(text, number)


def create_archive(path: Path, count: int) -> None:
    """Write a compressed archive of the project."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in files(count):
            member = tarfile.TarInfo(f"project/{name}")
            member.size = len(content)
            member.mtime = MODIFIED
            tar.addfile(member, io.BytesIO(content))


def create_repository(path: Path, count: int) -> None:
    """Create a bare repository with a history of the project, in one pack."""
    tree = path.with_name(path.name + ".checkout")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    git(["init", "--quiet"], tree)
    contents = list(files(count))
    step = max(1, -(-count // COMMITS))
    for start in range(0, count, step):
        _commit(tree, contents[start : start + step], f"Add part {start // step}")
    changed = [(name, content + b"# changed\n") for name, content in contents[::10]]
    _commit(tree, changed, "Change a tenth of the files")
    git(["clone", "--quiet", "--bare", "--no-hardlinks", str(tree), str(path)], tree)
    git(["repack", "-a", "-d", "--quiet"], path)
    shutil.rmtree(tree)


def _commit(tree: Path, contents: list[tuple[str, bytes]], message: str) -> None:
    for name, content in contents:
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    git(["add", "--all", "--force"], tree)
    git(["commit", "--quiet", "--message", message], tree)


def _name(number: int) -> str:
    folder = number // FOLDER
    suffix = SUFFIXES[number % len(SUFFIXES)]
    return f"part{folder // GROUP}/section{folder % GROUP}/module{number}{suffix}"


def _content(text: bytes, number: int) -> bytes:
    """Return the content of a file: a line with its name, then a part of the text."""
    decile = _number(f"decile {number}", len(DECILES) - 1)
    low, high = DECILES[decile], DECILES[decile + 1]
    size = low + _number(f"size {number}", high - low)
    start = _number(f"start {number}", len(text) - size)
    return f"# {_name(number)}\n".encode() + text[start : start + size] + b"\n"


def _corpus() -> bytes:
    """Return lines of words, indented like code."""
    lines: list[bytes] = []
    size = number = 0
    while size < CORPUS:
        digest = hashlib.sha256(f"line {number}".encode()).digest()
        words = [WORDS[byte % len(WORDS)] for byte in digest[1 : 2 + digest[0] % LINE_WORDS]]
        line = f"{' ' * (4 * (digest[-1] % 4))}{' '.join(words)} {digest[-3:].hex()}\n".encode()
        lines.append(line)
        size += len(line)
        number += 1
    return b"".join(lines)


def _number(key: str, below: int) -> int:
    """Return a number from 0 to `below` - 1 that depends only on the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % below
