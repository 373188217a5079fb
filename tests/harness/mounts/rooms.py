"""Rooms: small trees for one use each, so that every look before a change takes leases.

After a recall, a directory gets its next lease only after a second. So rounds in the same directory
would rarely find it leased. `CHANGES` and `HTTP_CHANGES` change a room. A `Window` looks at the
room and compares it with the truth.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.mounts.drive import until
from tests.harness.volumes.truth import stat_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.http.httpdrive import HttpDrive
    from tests.harness.volumes.truth import Seen, Truth

XATTR = "user.look"
PATHS = (
    *(".", "d", "e", "d/f", "d/g", "d/l", "d/h", "d/h2", "d/empty", "d/sub", "d/sub/deep"),
    *("d/sub/deep/f", "e/x", "d/new", "e/new", "d/new/deep", "d/new/deep/f"),
    *("e/new/deep", "e/new/deep/f", "d/empty/deep", "d/empty/deep/f"),
)
"""All paths that a room has or may get."""
HELD = ("d/f", "d/g", "d/h", "e/x", "d/sub/deep/f")
"""Files that a window holds open."""
PLACES = (".", "d", "e", "d/sub", "d/sub/deep", "d/f")
"""Paths that a window holds without opening them, as a working directory does."""
GONE = "gone"
"""The view of a directory that another client removed: ESTALE, or no name."""
EXCHANGE = 2
AT_FDCWD = -100
BATCH = 20
"""Number of rooms in a batch. Looks start after it, because a new room recalls leases above it."""


def furnish(room: Path, rng: random.Random) -> None:
    """Create the content of a room."""
    for name in ("d/empty", "d/sub/deep", "e"):
        (room / name).mkdir(parents=True)
    for name in ("d/f", "d/g", "d/h", "e/x", "d/sub/deep/f"):
        (room / name).write_bytes(rng.randbytes(rng.choice((1, 30, 4096, 5000, 70_000))))
    os.link(room / "d/h", room / "d/h2")
    os.symlink("nowhere", room / "d/l")
    os.setxattr(room / "d/g", XATTR, b"before")


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 30, 4096, 5000, 70_000)))


class MountChanges:
    """Each change of a room through a mount; descriptors may stay open until `close`."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def close(self) -> None:
        """Close the open descriptors."""
        while self._open:
            os.close(self._open.pop())

    def all(self) -> list[Callable[[Path, random.Random], object]]:
        """Return all changes in a fixed order."""
        return [*SIMPLE, self.fsync, self.append_fsync, self.write_sync, self.create_open]

    def fsync(self, room: Path, rng: random.Random) -> None:
        """Write bytes, make them durable and do not close the file."""
        self._written(room / "d/f", os.O_WRONLY, rng.randbytes(rng.choice((1, 5000))))

    def append_fsync(self, room: Path, rng: random.Random) -> None:
        """Append bytes, make them durable and do not close the file."""
        self._written(room / "d/f", os.O_WRONLY | os.O_APPEND, rng.randbytes(100))

    def write_sync(self, room: Path, rng: random.Random) -> None:
        """Write with O_SYNC, so each write is durable."""
        descriptor = os.open(room / "d/g", os.O_WRONLY | os.O_SYNC)
        self._open.append(descriptor)
        os.pwrite(descriptor, rng.randbytes(50), rng.choice((0, 10, 6000)))

    def create_open(self, room: Path, _rng: random.Random) -> None:
        """Create a file and leave it open."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._open.append(os.open(room / "d/new", flags, 0o600))

    def _written(self, path: Path, flags: int, data: bytes) -> None:
        descriptor = os.open(path, flags)
        self._open.append(descriptor)
        os.write(descriptor, data)
        os.fsync(descriptor)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, bytes(one), AT_FDCWD, bytes(other), EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _again(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _link_again(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


SIMPLE: tuple[Callable[[Path, random.Random], object], ...] = (
    lambda room, rng: (room / "d/new").write_bytes(_bytes(rng)),
    lambda room, rng: (room / "e/new").write_bytes(_bytes(rng)),
    lambda room, _: (room / "d/new").mkdir(0o750),
    lambda room, _: (room / "d/new/deep/f").mkdir(parents=True),
    lambda room, _: (room / "d/f").unlink(),
    lambda room, _: (room / "d/h").unlink(),
    lambda room, _: (room / "d/empty").rmdir(),
    lambda room, _: (room / "d/f").rename(room / "d/new"),
    lambda room, _: (room / "d/f").rename(room / "e/new"),
    lambda room, _: (room / "d/f").rename(room / "d/g"),
    lambda room, _: (room / "d/f").rename(room / "e/x"),
    lambda room, _: (room / "d/h").rename(room / "e/new"),
    lambda room, _: (room / "d/sub").rename(room / "d/new"),
    lambda room, _: (room / "d/sub").rename(room / "e/new"),
    lambda room, _: (room / "d/sub").rename(room / "d/empty"),
    lambda room, _: _exchange(room / "d/f", room / "e/x"),
    lambda room, _: _exchange(room / "d/sub", room / "d/f"),
    lambda room, _: os.link(room / "d/f", room / "d/new"),
    lambda room, _: os.link(room / "d/f", room / "e/new"),
    lambda room, _: (room / "d/new").symlink_to("f"),
    lambda room, _: _link_again(room / "d/l", "elsewhere"),
    lambda room, _: (room / "d/f").chmod(0o640),
    lambda room, _: (room / "d/h2").chmod(0o640),
    lambda room, _: (room / "d").chmod(0o711),
    lambda room, _: (room / "d/sub").chmod(0o711),
    lambda room, _: os.chown(room / "d/f", 1234, 2345),
    lambda room, _: os.chown(room / "d/sub", 1234, 2345),
    lambda room, rng: os.utime(room / "d/f", ns=(1, rng.randrange(1 << 60))),
    lambda room, rng: os.utime(room / "d/sub", ns=(1, rng.randrange(1 << 60))),
    lambda room, rng: os.truncate(room / "d/f", rng.choice((0, 10, 9000))),
    lambda room, _: os.close(os.open(room / "d/g", os.O_WRONLY | os.O_TRUNC)),
    lambda room, rng: (room / "d/f").write_bytes(_bytes(rng)),
    lambda room, rng: (room / "d/h2").write_bytes(_bytes(rng)),
    lambda room, rng: (room / "d/sub/deep/f").write_bytes(_bytes(rng)),
    lambda room, rng: (room / "e/x").write_bytes(rng.randbytes(300_000)),
    lambda room, rng: _append(room / "d/f", rng.randbytes(100)),
    lambda room, rng: _again(room / "d/f", _bytes(rng)),
    lambda room, _: os.setxattr(room / "d/f", XATTR, b"new"),
    lambda room, _: os.setxattr(room / "d/g", XATTR, b"other"),
    lambda room, _: os.setxattr(room / "d/sub", XATTR, b"new"),
    lambda room, _: os.removexattr(room / "d/g", XATTR),
    lambda room, _: shutil.rmtree(room / "d/sub"),
)

HTTP_CHANGES: tuple[Callable[[HttpDrive, random.Random], object], ...] = (
    lambda room, rng: room.put("d/new", _bytes(rng)),
    lambda room, rng: room.put("e/new", rng.randbytes(300_000)),
    lambda room, rng: room.put("d/f", _bytes(rng)),
    lambda room, rng: room.put("d/h2", _bytes(rng)),
    lambda room, rng: room.put("d/sub/deep/f", _bytes(rng)),
    lambda room, _: room.ask("PUT", "d/new/", b""),
    lambda room, _: room.delete("d/f"),
    lambda room, _: room.delete("d/h"),
    lambda room, _: room.delete("d/l"),
    lambda room, _: room.delete("d/empty"),
    lambda room, _: room.delete("d/sub"),
    lambda room, _: room.delete("e"),
)


class Room:
    """The true state of a room; each path is looked up once."""

    def __init__(self, name: str, truth: Truth) -> None:
        self._name = name
        self._truth = truth
        self._known: dict[str, Seen | None] = {}

    def __getitem__(self, path: str) -> Seen | None:
        if path not in self._known:
            where = self._name if path == "." else f"{self._name}/{path}"
            self._known[path] = self._truth.path(where)
        return self._known[path]

    def bytes_of(self, ino: int, otherwise: bytes) -> bytes:
        """Return the bytes of a file in the room by its inode number."""
        for path in PATHS:
            found = self[path]
            if found is not None and found.stat[0] == ino and isinstance(found.content, bytes):
                return found.content
        return otherwise


class MountWindow:
    """Looks through a mount, and holds files and directories of the room."""

    def __init__(self, room: Path, name: str, truth: Truth, session: int) -> None:
        """`name` is the path of the room in the drive, and `session` the session of the mount."""
        self._room = room
        self._name = name
        self._truth = truth
        self._session = session
        self._held: dict[str, tuple[int, int, bytes]] = {}
        self._places: dict[str, tuple[int, int]] = {}

    def hold(self) -> None:
        """Open the files and directories to hold."""
        for path in HELD:
            descriptor = os.open(self._room / path, os.O_RDONLY)
            self._held[path] = descriptor, os.fstat(descriptor).st_ino, b""
        for path in PLACES:
            descriptor = os.open(self._room / path, os.O_PATH)
            self._places[path] = descriptor, os.fstat(descriptor).st_ino

    def warm(self, rng: random.Random) -> bool:
        """Hold the files and fill the caches; return whether directory `d` is leased."""
        if not self._held:
            self.hold()
        for look in self.looks(rng):
            look()
        return self._session in self._truth.holders(self._places["d"][1])

    def has_told(self, path: str) -> bool:
        """Return whether the database has recorded a file that this window holds open."""
        return self._session in self._truth.sustainers(self._held[path][1])

    def close(self) -> None:
        """Close the held descriptors."""
        for descriptor, _, _ in self._held.values():
            os.close(descriptor)
        for descriptor, _ in self._places.values():
            os.close(descriptor)

    def looks(self, rng: random.Random) -> list[Callable[[], dict[str, object]]]:
        """Return all ways to look, in random order."""
        paths = rng.sample(PATHS, len(PATHS))
        looks: list[Callable[[], dict[str, object]]] = [
            lambda: {path: self._stat(path) for path in paths},
            lambda: {path: self._read(path) for path in paths},
            lambda: {path: self._list(path) for path in paths},
            lambda: {path: self._scan(path) for path in paths},
            lambda: {path: self._xattrs(path) for path in paths},
            lambda: {f"held {path}": self._read_held(path) for path in HELD},
            lambda: {f"place {path}": self._stat_place(path) for path in PLACES},
            lambda: {f"beside {path}": self._stat_beside(path) for path in ("f", "g", "new")},
        ]
        rng.shuffle(looks)
        return looks

    def compare(self, seen: list[dict[str, object]]) -> None:
        """Check that each result of the looks is the truth."""
        truth = Room(self._name, self._truth)
        stale = []
        for number, look in enumerate(seen):
            for path, shown in look.items():
                wanted = self._wanted(path, shown, truth)
                if shown != wanted:
                    stale.append(f"look {number}: {path}: {_brief(shown)} for {_brief(wanted)}")
        assert not stale, "\n".join(stale)

    def _wanted(self, path: str, shown: object, truth: Room) -> object:
        kind, _, rest = path.partition(" ")
        if kind == "place":
            return ("place", self._truth.inode(self._places[rest][1]) or GONE)
        if kind == "beside":
            return ("beside", _stat(truth[f"d/{rest}"]))
        if kind == "held":
            ino, data = self._held[rest][1:]
            data = truth.bytes_of(ino, data)
            return ("held", self._truth.inode(ino), data)
        assert isinstance(shown, tuple)
        return (shown[0], _part(str(shown[0]), truth, path))

    def _stat(self, path: str) -> object:
        try:
            return ("stat", stat_of(os.lstat(self._room / path)))
        except (FileNotFoundError, NotADirectoryError):
            return ("stat", None)

    def _read(self, path: str) -> object:
        place = self._room / path
        try:
            if place.is_symlink():
                return ("read", os.readlink(place))
            if place.is_dir():
                return ("read", sorted(os.listdir(place)))
            return ("read", place.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return ("read", None)

    def _list(self, path: str) -> object:
        try:
            return ("list", sorted(os.listdir(self._room / path)))
        except (FileNotFoundError, NotADirectoryError):
            return ("list", None)

    def _scan(self, path: str) -> object:
        try:
            with os.scandir(self._room / path) as entries:
                found = {one.name: stat_of(one.stat(follow_symlinks=False)) for one in entries}
        except (FileNotFoundError, NotADirectoryError):
            return ("scan", None)
        return ("scan", found)

    def _xattrs(self, path: str) -> object:
        place = self._room / path
        try:
            if place.is_symlink():
                return ("xattrs", {})
            return ("xattrs", {name: os.getxattr(place, name) for name in os.listxattr(place)})
        except (FileNotFoundError, NotADirectoryError):
            return ("xattrs", None)

    def _read_held(self, path: str) -> object:
        descriptor, ino, _ = self._held[path]
        found = os.fstat(descriptor)
        data = os.pread(descriptor, found.st_size + 1, 0)
        if found.st_nlink:
            # The content at the moment when the file loses its name.
            self._held[path] = descriptor, ino, data
        return ("held", stat_of(found), data)

    def _stat_place(self, path: str) -> object:
        try:
            found = os.fstat(self._places[path][0])
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return ("place", GONE)
        return (
            "place",
            GONE if stat.S_ISDIR(found.st_mode) and not found.st_nlink else stat_of(found),
        )

    def _stat_beside(self, name: str) -> object:
        try:
            found = os.stat(name, dir_fd=self._places["d"][0], follow_symlinks=False)
        except FileNotFoundError:
            return ("beside", None)
        return ("beside", stat_of(found))


class HttpWindow:
    """Looks over HTTP."""

    def __init__(self, room: HttpDrive, name: str, truth: Truth) -> None:
        """`name` is the path of the room in the drive."""
        self._room = room
        self._name = name
        self._truth = truth

    def looks(self, rng: random.Random) -> list[Callable[[], dict[str, object]]]:
        """Return all ways to look, in random order."""
        paths = [path for path in rng.sample(PATHS, len(PATHS)) if path not in (".", "d/l")]
        looks: list[Callable[[], dict[str, object]]] = [
            lambda: {path: ("get", self._get(path)) for path in paths},
            lambda: {path: ("size", self._size(path)) for path in paths},
        ]
        rng.shuffle(looks)
        return looks

    def compare(self, seen: list[dict[str, object]]) -> None:
        """Check that each result of the looks is the truth."""
        truth = Room(self._name, self._truth)
        for look in seen:
            for path, shown in look.items():
                found = truth[path]
                assert isinstance(shown, tuple)
                if found is not None and isinstance(found.content, str):
                    continue  # The HTTP API follows links.
                wanted = _part(str(shown[0]), truth, path)
                assert shown[1] == wanted, f"{path}: {_brief(shown)} for {_brief(wanted)}"

    def _get(self, path: str) -> object:
        answer = self._room.ask("GET", path)
        assert answer.status in (200, 404), answer
        if answer.status == 404:
            return None
        if answer.headers["content-type"].startswith("application/json"):
            return sorted(self._room.entries(path) or {})
        return answer.body

    def _size(self, path: str) -> object:
        answer = self._room.ask("HEAD", path)
        assert answer.status in (200, 404), answer
        if answer.status == 404:
            return None
        if answer.headers["content-type"].startswith("application/json"):
            return "directory"
        return int(answer.headers["content-length"])


def _part(what: str, truth: Room, path: str) -> object:
    found = truth[path]
    if found is None:
        return None
    parts: dict[str, object] = {
        "stat": found.stat,
        "xattrs": {} if isinstance(found.content, str) else found.xattrs,
        "read": found.content,
        "get": found.content,
        "size": found.stat[5] if found.is_file else "directory",
        "list": found.content if found.is_dir else None,
        "scan": _children(truth, path) if found.is_dir else None,
    }
    return parts[what]


def _children(truth: Room, path: str) -> dict[str, object]:
    above = "" if path == "." else path + "/"
    found = truth[path]
    names = found.content if found is not None and isinstance(found.content, list) else []
    return {name: _stat(truth[above + name]) for name in names}


def _stat(found: Seen | None) -> object:
    return None if found is None else found.stat


def _brief(shown: object) -> str:
    text = repr(shown)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"


class Rooms:
    """Gives each round a room. The mount that does not look creates the rooms in batches."""

    def __init__(self, makers: tuple[Path, ...]) -> None:
        self._makers = makers
        self._made: dict[str, Path] = {}
        self._batches = 0

    def take(self) -> tuple[str, int]:
        """Return the path of a room, and the number of the mount that created it."""
        if not self._made:
            self.clear()
            self._batches += 1
            top = self._makers[self._batches % len(self._makers)] / f"t{self._batches}"
            for number in range(BATCH):
                furnish(top / f"r{number}", random.Random(number))
                self._made[f"{top.name}/r{number}"] = top
            # Only the first read moves access times, which recalls leases.
            for folder, _, files in os.walk(top):
                for file in files:
                    if not os.path.islink(os.path.join(folder, file)):
                        Path(folder, file).read_bytes()
        name = next(iter(self._made))
        del self._made[name]
        return name, self._batches % len(self._makers)

    def clear(self) -> None:
        """Remove the batch."""
        if self._batches:
            shutil.rmtree(self._makers[self._batches % len(self._makers)] / f"t{self._batches}")


def warm(windows: list[MountWindow], seed: int) -> None:
    """Look until leases cover all data that the windows show."""
    until(lambda: all(window.warm(random.Random(seed)) for window in windows), 60)
