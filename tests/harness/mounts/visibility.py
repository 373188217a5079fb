"""Clients that change a directory of a drive and clients that look at it, for visibility tests.

`Folder` is the expected content of the directory. A `Changer` makes one change and records it in
the folder. A `Looker` looks in every way it has: first to warm all caches, and after the change to
compare. A `Node` is one inode. Hard links share it, and an open descriptor of a node without a name
must continue to show it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.harness.http.httpdrive import HttpDrive

NAMES = ("a", "b", "c", "d", "e")
LATENCY = Path(".build/latency")
XATTR = "user.look"
SIZES = (0, 1, 30, 200, 4096, 5000, 70_000, 300_000)
"""Sizes in bytes for both kinds of storage: in the database, and in blocks."""


@dataclass(slots=True, eq=False)
class Node:
    """The expected state of an inode. Only symbolic links have a `target`."""

    data: bytes = b""
    mode: int = 0o644
    is_dir: bool = False
    target: str | None = None
    xattr: bytes | None = None
    mtime_ns: int | None = None

    @property
    def is_file(self) -> bool:
        """Return whether the node is a regular file."""
        return not self.is_dir and self.target is None


@dataclass(slots=True)
class Folder:
    """Names and nodes."""

    names: dict[str, Node] = field(default_factory=dict)

    def links(self, node: Node) -> int:
        """Return the number of names of a node."""
        return sum(one is node for one in self.names.values())


class Changer(Protocol):
    """Makes changes."""

    def change(self, rng: random.Random, folder: Folder) -> str:
        """Make one change of a random name; return the name after the acknowledgement."""
        ...


class Looker(Protocol):
    """Compares its view with the expected content."""

    def looks(self) -> list[Callable[[Folder, str], None]]:
        """Return all its ways to look at a name."""
        ...

    def warm(self, folder: Folder, name: str) -> None:
        """Fill every cache and hold the file open."""
        ...


class Times:
    """Durations in seconds by kind of call."""

    def __init__(self) -> None:
        self.by_verb: dict[str, list[float]] = defaultdict(list)

    def measured(self, verb: str, call: Callable[[], None]) -> None:
        """Make a call and record its duration."""
        start = time.perf_counter()
        call()
        self.by_verb[verb].append(time.perf_counter() - start)

    def median(self, verb: str) -> float:
        """Return the median in seconds; 0 without measurements."""
        return median(self.by_verb[verb] or [0.0])

    def table(self) -> dict[str, dict[str, float]]:
        """Return count, median, 99th percentile and maximum in milliseconds for each verb."""
        found = {}
        for verb, seconds in sorted(self.by_verb.items()):
            steps = sorted(seconds)
            places = {"p50": len(steps) // 2, "p99": len(steps) * 99 // 100, "max": len(steps) - 1}
            row = {name: round(1000 * steps[at], 3) for name, at in places.items()}
            found[verb] = {"count": float(len(steps)), **row}
        return found


def keep(name: str, times: Times) -> None:
    """Write the times of a run to a file, for reports."""
    LATENCY.mkdir(parents=True, exist_ok=True)
    found = {"measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "milliseconds": times.table()}
    (LATENCY / f"{name}.json").write_text(json.dumps(found, indent=1))


class MountChanger:
    """Implements `Changer` through a mount, as programs do."""

    def __init__(self, path: Path, times: Times) -> None:
        self._path = path
        self._times = times
        self._after: list[int] = []

    def change(self, rng: random.Random, folder: Folder) -> str:
        self.let_go()
        name = rng.choice(NAMES)
        node = folder.names.get(name)
        if node is None:
            verbs = ["create", "create", "create_empty", "mkdir", "symlink", "link", "move"]
        elif node.is_dir:
            verbs = ["rmdir", "chmod", "rename_dir", "set_xattr"]
        elif node.target is not None:
            verbs = ["unlink", "again"]
        else:
            verbs = ["overwrite", "append_fsync", "write_sync", "truncate", "replace", "unlink"]
            verbs += ["again", "chmod", "set_xattr", "drop_xattr", "set_time", "exchange"]
        verb = rng.choice(verbs)
        self._times.measured(verb, lambda: getattr(self, f"_{verb}")(rng, folder, name))
        return name

    def let_go(self) -> None:
        """Close the files that a change left open on purpose."""
        while self._after:
            os.close(self._after.pop())

    def _create(self, rng: random.Random, folder: Folder, name: str) -> None:
        data = rng.randbytes(rng.choice(SIZES))
        (self._path / name).write_bytes(data)
        folder.names[name] = Node(data)

    def _create_empty(self, _rng: random.Random, folder: Folder, name: str) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._after.append(os.open(self._path / name, flags, 0o600))
        folder.names[name] = Node(mode=0o600)

    def _mkdir(self, _rng: random.Random, folder: Folder, name: str) -> None:
        (self._path / name).mkdir(0o755)
        folder.names[name] = Node(mode=0o755, is_dir=True)

    def _symlink(self, rng: random.Random, folder: Folder, name: str) -> None:
        target = f"none{rng.randrange(1000)}"
        (self._path / name).symlink_to(target)
        folder.names[name] = Node(target=target)

    def _link(self, rng: random.Random, folder: Folder, name: str) -> None:
        files = [other for other, node in folder.names.items() if node.is_file]
        if not files:
            return self._create(rng, folder, name)
        other = rng.choice(sorted(files))
        os.link(self._path / other, self._path / name)
        folder.names[name] = folder.names[other]
        return None

    def _move(self, rng: random.Random, folder: Folder, name: str) -> None:
        if not folder.names:
            return self._create(rng, folder, name)
        other = rng.choice(sorted(folder.names))
        (self._path / other).rename(self._path / name)
        folder.names[name] = folder.names.pop(other)
        return None

    def _rmdir(self, _rng: random.Random, folder: Folder, name: str) -> None:
        (self._path / name).rmdir()
        del folder.names[name]

    def _rename_dir(self, _rng: random.Random, folder: Folder, name: str) -> None:
        free = [other for other in NAMES if other not in folder.names]
        if free:
            (self._path / name).rename(self._path / free[0])
            folder.names[free[0]] = folder.names.pop(name)

    def _chmod(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = folder.names[name]
        node.mode = rng.choice((0o600, 0o640, 0o755, 0o711))
        (self._path / name).chmod(node.mode)

    def _overwrite(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = folder.names[name]
        node.data, node.mtime_ns = rng.randbytes(rng.choice(SIZES)), None
        (self._path / name).write_bytes(node.data)

    def _append_fsync(self, rng: random.Random, folder: Folder, name: str) -> None:
        node, more = folder.names[name], rng.randbytes(rng.choice(SIZES))
        descriptor = os.open(self._path / name, os.O_WRONLY | os.O_APPEND)
        self._after.append(descriptor)
        os.write(descriptor, more)
        os.fsync(descriptor)
        node.data, node.mtime_ns = node.data + more, None

    def _write_sync(self, rng: random.Random, folder: Folder, name: str) -> None:
        node, more = folder.names[name], rng.randbytes(rng.choice(SIZES) + 1)
        at = rng.randrange(len(node.data) + 100)
        descriptor = os.open(self._path / name, os.O_WRONLY | os.O_SYNC)
        self._after.append(descriptor)
        os.pwrite(descriptor, more, at)
        padded = node.data.ljust(at, b"\0")
        node.data, node.mtime_ns = padded[:at] + more + padded[at + len(more) :], None

    def _truncate(self, rng: random.Random, folder: Folder, name: str) -> None:
        node, size = folder.names[name], rng.choice(SIZES)
        os.truncate(self._path / name, size)
        node.data, node.mtime_ns = node.data[:size].ljust(size, b"\0"), None

    def _replace(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = Node(rng.randbytes(rng.choice(SIZES)))
        (self._path / ".new").write_bytes(node.data)
        (self._path / ".new").rename(self._path / name)
        folder.names[name] = node

    def _exchange(self, rng: random.Random, folder: Folder, name: str) -> None:
        other = rng.choice(sorted(folder.names))
        if folder.names[other] is folder.names[name] or folder.names[other].is_dir:
            return self._replace(rng, folder, name)
        (self._path / name).rename(self._path / other)
        folder.names[other] = folder.names.pop(name)
        return None

    def _unlink(self, _rng: random.Random, folder: Folder, name: str) -> None:
        (self._path / name).unlink()
        del folder.names[name]

    def _again(self, rng: random.Random, folder: Folder, name: str) -> None:
        self._unlink(rng, folder, name)
        self._create(rng, folder, name)

    def _set_xattr(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = folder.names[name]
        node.xattr = rng.randbytes(20)
        os.setxattr(self._path / name, XATTR, node.xattr)

    def _drop_xattr(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = folder.names[name]
        if node.xattr is None:
            return self._set_xattr(rng, folder, name)
        os.removexattr(self._path / name, XATTR)
        node.xattr = None
        return None

    def _set_time(self, rng: random.Random, folder: Folder, name: str) -> None:
        node = folder.names[name]
        node.mtime_ns = rng.randrange(1 << 60)
        os.utime(self._path / name, ns=(1, node.mtime_ns))


class MountLooker:
    """Implements `Looker` through a mount; keeps one file open from round to round."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: tuple[int, Node] | None = None

    def looks(self) -> list[Callable[[Folder, str], None]]:
        return [self._stat, self._open, self._list, self._get_xattr, self._read_held]

    def warm(self, folder: Folder, name: str) -> None:
        node = folder.names.get(name)
        if node is not None and node.is_file:
            self.let_go()
            self._held = os.open(self._path / name, os.O_RDONLY), node
        for look in self.looks():
            look(folder, name)

    def let_go(self) -> None:
        """Close the held file."""
        if self._held is not None:
            os.close(self._held[0])
            self._held = None

    def _stat(self, folder: Folder, name: str) -> None:
        node = folder.names.get(name)
        try:
            found = os.lstat(self._path / name)
        except FileNotFoundError:
            assert node is None, f"{name} is missing"
            return
        assert node is not None, f"{name} is still there"
        assert stat.S_ISDIR(found.st_mode) == node.is_dir
        assert stat.S_ISLNK(found.st_mode) == (node.target is not None)
        if node.target is None:
            assert stat.S_IMODE(found.st_mode) == node.mode
        if node.is_file:
            assert found.st_size == len(node.data)
            assert found.st_nlink == folder.links(node)
            assert node.mtime_ns in (None, found.st_mtime_ns)

    def _open(self, folder: Folder, name: str) -> None:
        node, path = folder.names.get(name), self._path / name
        if node is not None and node.target is not None:
            assert os.readlink(path) == node.target
        elif node is not None and node.is_dir:
            assert os.listdir(path) == []
        elif node is not None:
            assert path.read_bytes() == node.data
        else:
            assert not path.exists()

    def _list(self, folder: Folder, _name: str) -> None:
        with os.scandir(self._path) as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        assert found == {name: node.is_dir for name, node in folder.names.items()}

    def _get_xattr(self, folder: Folder, name: str) -> None:
        node, path = folder.names.get(name), self._path / name
        if node is None or node.target is not None:
            return
        wanted = [] if node.xattr is None else [XATTR]
        assert os.listxattr(path) == wanted
        if node.xattr is not None:
            assert os.getxattr(path, XATTR) == node.xattr

    def _read_held(self, folder: Folder, _name: str) -> None:
        if self._held is None:
            return
        descriptor, node = self._held
        assert os.fstat(descriptor).st_size == len(node.data)
        assert os.fstat(descriptor).st_nlink == folder.links(node)
        assert os.pread(descriptor, len(node.data) + 1, 0) == node.data


class HttpChanger:
    """Implements `Changer` over HTTP."""

    def __init__(self, drive: HttpDrive, times: Times) -> None:
        self._drive = drive
        self._times = times

    def change(self, rng: random.Random, folder: Folder) -> str:
        name = rng.choice(NAMES)
        node = folder.names.get(name)
        if node is None:
            verbs = ["put", "put", "put_slash"]
        else:
            verbs = ["delete", "again"] if node.is_dir else ["put", "put", "put", "delete", "again"]
        verb = rng.choice(verbs)
        self._times.measured(verb, lambda: getattr(self, f"_{verb}")(rng, folder, name))
        return name

    def _put(self, rng: random.Random, folder: Folder, name: str) -> None:
        before, data = folder.names.get(name), rng.randbytes(rng.choice(SIZES))
        answer = self._drive.put(name, data)
        assert answer.status == (201 if before is None else 204)
        folder.names[name] = Node(data, mode=0o644 if before is None else before.mode)

    def _put_slash(self, _rng: random.Random, folder: Folder, name: str) -> None:
        assert self._drive.ask("PUT", f"{name}/", b"").status == 201
        folder.names[name] = Node(mode=0o755, is_dir=True)

    def _delete(self, _rng: random.Random, folder: Folder, name: str) -> None:
        assert self._drive.delete(name)
        del folder.names[name]

    def _again(self, rng: random.Random, folder: Folder, name: str) -> None:
        self._delete(rng, folder, name)
        self._put(rng, folder, name)


class HttpLooker:
    """Implements `Looker` over HTTP."""

    def __init__(self, drive: HttpDrive) -> None:
        self._drive = drive

    def looks(self) -> list[Callable[[Folder, str], None]]:
        return [self._get, self._head, self._list]

    def warm(self, folder: Folder, name: str) -> None:
        for look in self.looks():
            look(folder, name)

    def _get(self, folder: Folder, name: str) -> None:
        node = folder.names.get(name)
        if node is not None and node.is_dir:
            assert self._drive.entries(name) == {}
        else:
            wanted = node.data if node is not None and node.is_file else None
            assert self._drive.get(name) == wanted

    def _head(self, folder: Folder, name: str) -> None:
        node, answer = folder.names.get(name), self._drive.ask("HEAD", name)
        if node is None or node.target is not None:
            assert answer.status == 404
        else:
            assert answer.status == 200
            if node.is_file:
                assert int(answer.headers["content-length"]) == len(node.data)

    def _list(self, folder: Folder, _name: str) -> None:
        found = self._drive.entries()
        assert found is not None
        assert {name: is_dir for name, (is_dir, _) in found.items()} == {
            name: node.is_dir for name, node in folder.names.items()
        }
        for name, node in folder.names.items():
            if node.is_file:
                assert found[name][1] == len(node.data)
