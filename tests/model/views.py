"""One tree seen from two mounts and over HTTP, played beside the same tree on a memory filesystem.

A step is made on one side and on the model; both must answer alike: the same errno and the same
result from a mount, success or refusal from HTTP. After each change another side looks at it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.http.httpdrive import HttpDrive

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
HANDLES = 3
XATTR = "user.model"
SIZES = (0, 1, 10, 300, 4096, 66_000)
MODES = (0o600, 0o644, 0o755, 0o700)
ESTALE = f"errno {errno.ESTALE}"
P = ParamSpec("P")
_libc = ctypes.CDLL(None, use_errno=True)

Step: TypeAlias = tuple[str, int, str, str, int]
"""Verb, side (0 and 1: the mounts), path, other path, a small number."""

_names = st.sampled_from("abc")
_paths = st.one_of(_names, _names, _names.map("a/{}".format), _names.map("a/b/{}".format)) | (
    st.tuples(_names, _names).map("/".join)
)
MOUNT_VERBS = (
    *("write", "write", "write", "append", "patch", "truncate", "mkdir", "mkdir", "rmdir"),
    *("write", "unlink", "symlink", "link", "rename", "rename", "noreplace", "exchange", "chmod"),
    *("setxattr", "getxattr", "read", "stat", "list", "readlink"),
    *("hold", "hold", "held_read", "held_write", "held_truncate", "held_stat", "drop"),
)
RENAMES = ("rename", "noreplace", "exchange")
HTTP_VERBS = ("put", "put", "put_new", "make", "delete", "get", "entries")
_numbers = st.integers(0, 99)
_steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.sampled_from(MOUNT_VERBS), st.integers(0, 1), _paths, _paths, _numbers),
    st.tuples(st.sampled_from(MOUNT_VERBS), st.integers(0, 1), _paths, _paths, _numbers),
    st.tuples(st.sampled_from(HTTP_VERBS), st.just(2), _paths, _paths, _numbers),
)


def plays(length: int) -> st.SearchStrategy[list[Step]]:
    """Lists of steps, of `length` on average."""
    return st.lists(_steps, min_size=length // 2, max_size=length * 3 // 2)


def rename2(old: Path, new: Path, flags: int) -> None:
    """renameat2(2)."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


@dataclass(slots=True)
class Held:
    """A file open on a mount and in the model."""

    descriptor: int
    twin: int
    side: int


def data_of(step: int, number: int) -> bytes:
    """Bytes that tell by which step they were written."""
    size = SIZES[number % len(SIZES)]
    return (b"%06d" % step * (size // 6 + 1))[:size]


class Tree:
    """POSIX calls below one directory: a mount, or the model."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces the bytes."""
        (self.root / path).write_bytes(data)

    def append(self, path: str, data: bytes) -> None:
        """O_APPEND without O_CREAT."""
        descriptor = os.open(self.root / path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def patch(self, path: str, data: bytes, at: int) -> None:
        """Bytes somewhere, perhaps behind the end."""
        descriptor = os.open(self.root / path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, data, at)
        finally:
            os.close(descriptor)

    def chmod(self, path: str, mode: int) -> None:
        """Of what a link leads to."""
        (self.root / path).chmod(mode)

    def stat(self, path: str) -> tuple[int, ...]:
        """What of lstat(2) two filesystems have in common."""
        return common(os.lstat(self.root / path))

    def getxattr(self, path: str) -> bytes:
        """ENODATA when there is none."""
        return os.getxattr(self.root / path, XATTR)

    def everything(self) -> dict[str, tuple[object, ...]]:
        """Each path with what it is."""
        found: dict[str, tuple[object, ...]] = {}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = Path(folder) / name
                kind = os.lstat(path)
                content: object = None
                if stat.S_ISLNK(kind.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(kind.st_mode):
                    content = path.read_bytes()
                xattrs = [] if stat.S_ISLNK(kind.st_mode) else os.listxattr(path)
                row = (common(kind), content, xattrs)
                found[str(path.relative_to(self.root))] = row
        return found


def common(found: os.stat_result) -> tuple[int, ...]:
    """Type, mode, links, size (of a directory each filesystem has its own)."""
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return found.st_mode, found.st_nlink, size


class Model(Tree):
    """The memory filesystem; HTTP's verbs are said in POSIX calls."""

    def _target(self, path: str) -> Path:
        """Where a path leads, also when nothing is there yet; OSError for loops."""
        real = self.root / path
        try:
            return real.resolve(strict=True)
        except FileNotFoundError:
            return real.resolve()
        except RuntimeError as error:
            raise OSError(40, "loop") from error

    def put(self, path: str, data: bytes, *, new: bool = False) -> None:
        """Replaces at once, with the old mode; makes missing parents."""
        target = self._target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError
        if new and target.exists():
            raise FileExistsError
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
        fresh = self.root.parent / "fresh"
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.rename(target)

    def make(self, path: str) -> None:
        """A directory with its parents."""
        self._target(path).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        """A name with everything below it; a link itself."""
        target = self.root / path
        if stat.S_ISDIR(os.lstat(target).st_mode):
            shutil.rmtree(target)
        else:
            target.unlink()

    def get(self, path: str) -> bytes | list[str]:
        """Bytes, or names."""
        target = self.root / path
        return sorted(os.listdir(target)) if target.is_dir() else target.read_bytes()


class Play:
    """Plays steps on all sides of one fresh tree."""

    def __init__(self, mounts: tuple[Path, Path], http: HttpDrive, model: Path) -> None:
        """The roots of the tree, empty, on each side."""
        self._trees = [Tree(path) for path in mounts]
        self._http = http
        self._model = Model(model)
        self._held: dict[int, Held] = {}
        self._number = 0

    def play(self, steps: list[Step]) -> None:
        """All steps, then a look at everything from everywhere."""
        for tree in (self._trees[0], self._model):
            (tree.root / "a" / "b").mkdir(parents=True)
            tree.write("b", b"b" * 100)
            tree.write("a/a", b"a" * 100)
        try:
            for verb, side, path, other, number in steps:
                self._number += 1
                call = self._on_http if side == 2 else self._on_mount
                call(verb, side, path, other, number)
                self._look(path, side + number)
            wanted = self._model.everything()
            for tree in self._trees:
                assert tree.everything() == wanted
        finally:
            for number in list(self._held):
                self._drop(number=number)

    def _look(self, path: str, number: int) -> None:
        """Another side than the one that worked sees the path as the model does."""
        wanted = answer(self._model.stat, path)
        if number % 3 < 2:
            assert answer(self._trees[number % 3].stat, path) == wanted
            return
        status = self._http.ask("HEAD", path).status
        try:
            kind = (self._model.root / path).stat().st_mode
            assert status == (200 if stat.S_ISDIR(kind) or stat.S_ISREG(kind) else 404)
        except OSError:
            assert status == 404

    def _on_mount(self, verb: str, side: int, path: str, other: str, number: int) -> None:
        if verb in ("hold", "held_read", "held_write", "held_truncate", "held_stat", "drop"):
            getattr(self, f"_{verb}")(side, path, number)
            return
        data = data_of(self._number, number)
        args = verb, path, other, number, data
        wanted, found = (answer(posix, tree, *args) for tree in (self._model, self._trees[side]))
        if verb in RENAMES and found == ESTALE:
            # A directory that somebody else has moved meanwhile: see docs/reference.
            for name in (path, other):
                answer(self._trees[side].stat, name)
            found = answer(posix, self._trees[side], *args)
        assert found == wanted, verb

    def _on_http(self, verb: str, _side: int, path: str, _other: str, number: int) -> None:
        http, model = self._http, self._model
        data = data_of(self._number, number)
        if verb == "get" or verb == "entries":
            wanted = answer(model.get, path)
            got = http.ask("GET", path)
            if isinstance(wanted, bytes):
                assert (got.status, got.body) == (200, wanted)
            elif isinstance(wanted, list):
                assert sorted(http.entries(path) or {}) == wanted
            else:
                assert got.status == 404
            return
        if verb == "put":
            wanted, got = answer(model.put, path, data), http.ask("PUT", path, data)
        elif verb == "put_new":
            wanted = answer(model.put, path, data, new=True)
            got = http.ask("PUT", path, data, if_none_match="*")
        elif verb == "make":
            wanted, got = answer(model.make, path), http.ask("PUT", f"{path}/", b"")
        else:
            wanted, got = answer(model.delete, path), http.ask("DELETE", path)
        assert (got.status < 300) == (wanted is None), (verb, got, wanted)
        assert got.status < 500

    def _hold(self, side: int, path: str, number: int) -> None:
        self._drop(side, path, number)
        flags = (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND)[number % 3]
        found = answer(os.open, self._trees[side].root / path, flags)
        wanted = answer(os.open, self._model.root / path, flags)
        if isinstance(found, int) and isinstance(wanted, int):
            self._held[number % HANDLES] = Held(found, wanted, side)
        else:
            assert found == wanted

    def _drop(self, _side: int = 0, _path: str = "", number: int = 0) -> None:
        held = self._held.pop(number % HANDLES, None)
        if held is not None:
            os.close(held.descriptor)
            os.close(held.twin)

    def _held_read(self, _side: int, _path: str, number: int) -> None:
        self._both(number, lambda descriptor: os.pread(descriptor, 5000, number * 40))

    def _held_stat(self, _side: int, _path: str, number: int) -> None:
        held = self._held.get(number % HANDLES)
        if held is None:
            return
        wanted = common(os.fstat(held.twin))
        found = answer(lambda: common(os.fstat(held.descriptor)))
        # A directory that others have removed: see docs/reference.
        removed = stat.S_ISDIR(wanted[0]) and not wanted[1]
        assert found == wanted or (removed and found == ESTALE)

    def _held_truncate(self, _side: int, _path: str, number: int) -> None:
        self._both(number, lambda descriptor: os.ftruncate(descriptor, number * 50))

    def _held_write(self, _side: int, _path: str, number: int) -> None:
        data = data_of(self._number, number)

        def write(descriptor: int) -> None:
            os.pwrite(descriptor, data, number * 10)
            os.fsync(descriptor)

        self._both(number, write)

    def _both(self, number: int, call: Callable[[int], object]) -> None:
        held = self._held.get(number % HANDLES)
        if held is not None:
            assert answer(call, held.descriptor) == answer(call, held.twin)


def answer(call: Callable[P, object], *args: P.args, **named: P.kwargs) -> object:
    """What a call answers; the errno's number when it fails."""
    try:
        return call(*args, **named)
    except OSError as error:
        return f"errno {error.errno}"


def posix(tree: Tree, verb: str, path: str, other: str, number: int, data: bytes) -> object:
    """One POSIX step below a tree."""
    here, there = tree.root / path, tree.root / other
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: tree.write(path, data),
        "append": lambda: tree.append(path, data),
        "patch": lambda: tree.patch(path, data, number * 100),
        "truncate": lambda: os.truncate(here, number * 30),
        "mkdir": here.mkdir,
        "rmdir": here.rmdir,
        "unlink": here.unlink,
        "symlink": lambda: here.symlink_to(Path(other).name),
        "link": lambda: os.link(here, there, follow_symlinks=False),
        "rename": lambda: os.rename(here, there),
        "noreplace": lambda: rename2(here, there, RENAME_NOREPLACE),
        "exchange": lambda: rename2(here, there, RENAME_EXCHANGE),
        "chmod": lambda: tree.chmod(path, MODES[number % len(MODES)]),
        "setxattr": lambda: os.setxattr(here, XATTR, data[:40]),
        "getxattr": lambda: tree.getxattr(path),
        "read": here.read_bytes,
        "stat": lambda: tree.stat(path),
        "list": lambda: sorted(os.listdir(here)),
        "readlink": lambda: os.readlink(here),
    }
    return calls[verb]()
