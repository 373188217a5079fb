"""Iterates over stored objects in the order of their keys. Blocking."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objectserver.names import MORE, OBJECT, decode, directory_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAST = b"\xff"
"""Sorts after every byte of a key (UTF-8 does not use this byte)."""


@dataclass(slots=True)
class _Entry:
    """A child of a directory. `name` is its part of the key, with a final slash for a directory."""

    name: bytes
    path: Path
    directory: bool


class Walk:
    """Iterates over (key, file) of all keys that start with `prefix` and are greater than `after`.

    `skip` may be called during the iteration. Objects added or removed meanwhile may or may not
    appear.
    """

    def __init__(self, root: Path, prefix: bytes, after: bytes = b"") -> None:
        self._prefix = prefix
        self._after = after
        whole, slash, _ = prefix.rpartition(b"/")
        segments = whole.split(b"/") if slash else []
        start = root.joinpath(*directory_path(segments))
        self._stack = [(whole + slash, _entries(start))]

    def skip(self, group: bytes) -> None:
        """Skip all keys that start with `group`."""
        self._after = max(self._after, group + PAST)

    def __iter__(self) -> Iterator[tuple[bytes, Path]]:
        while self._stack:
            base, entries = self._stack[-1]
            entry = next(entries, None)
            if entry is None:
                self._stack.pop()
                continue
            key = base + entry.name
            if entry.directory:
                if self._may_hold(key):
                    self._stack.append((key, _entries(entry.path)))
            elif key.startswith(self._prefix) and key > self._after:
                yield key, entry.path

    def _may_hold(self, base: bytes) -> bool:
        """Return whether keys that start with `base` can match."""
        if not (base.startswith(self._prefix) or self._prefix.startswith(base)):
            return False
        if not self._after.startswith(base):
            return base > self._after
        return not self._after.startswith(base + PAST)


def _entries(directory: Path) -> Iterator[_Entry]:
    return iter(sorted(_children(directory, ""), key=lambda entry: entry.name))


def _children(directory: Path, before: str) -> list[_Entry]:
    """Return the children of a directory, unsorted.

    `before` is the encoded beginning of a segment that was split.
    """
    children: list[_Entry] = []
    try:
        with os.scandir(directory) as scan:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan]
    except (FileNotFoundError, NotADirectoryError):
        return children
    for name, is_directory in names:
        path = directory / name
        if is_directory and name.endswith(MORE):
            children += _children(path, before + name.removesuffix(MORE))
        elif is_directory:
            children.append(_Entry(decode(before + name) + b"/", path, True))
        elif name.endswith(OBJECT):
            children.append(_Entry(decode(before + name.removesuffix(OBJECT)), path, False))
    return children
