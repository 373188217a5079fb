"""User namespaces of boxes, and mounts that map the ids of files to the ids of a box.

The ids on disks are those that the box sees. A mount with an id map shows them to the kernel as ids
of the box's range, and stores new files with the ids that the box sees. So images, layers,
snapshots and drives need no other owners, and move between boxes (*measured* with Linux 6.18).

A pinned user namespace represents a range: it has no processes, and a file of the host keeps it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host import mounts
from boxd.backends.host.run import ENVIRONMENT
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from boxd.backends.host.id_ranges import IdRange

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_CLONE, _CLOEXEC = 1, 0x80000
_AT_EMPTY_PATH = 0x1000
_FROM_DESCRIPTOR = 4
_RDONLY, _IDMAP, _PRIVATE = 1, 0x100000, 1 << 18
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
_MOST_LAYERS = 8
_HELPER = ("unshare", "--user", "sh", "-c", "echo; read -r _")
"""A process in a new user namespace. Its line says that the namespace exists."""
_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class IdMap:
    """The map of one range. `namespace` is its pinned user namespace."""

    ids: IdRange
    namespace: Path


def require(ids: IdRange, place: Path, directories: Iterable[Path]) -> None:
    """Check that this host can map the ids of a range for files in some directories.

    `place` is for files of the check, which removes them. Raises Unavailable with a reason.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    by = IdMap(ids, place / "users")
    target = place / "mapped"
    try:
        pin(ids, by.namespace)
        for directory in directories:
            try:
                bind(directory, target, by)
            except OSError as error:
                raise Unavailable(
                    f"the file system of {directory} cannot map ids: {error.strerror}"
                ) from error
            finally:
                unbind(target)
    finally:
        unpin(by.namespace)
        with suppress(FileNotFoundError):
            place.rmdir()


def pin(ids: IdRange, place: Path) -> IdMap:
    """Create a user namespace of a range and keep it at `place`, unless it is there.

    Raises Unavailable with the kernel's error.
    """
    by = IdMap(ids, place)
    if mounts.device_at(Path("/proc/self/mountinfo"), str(place)) is not None:
        return by
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(_HELPER, stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT) as helper:
        try:
            _keep(helper, ids, place)
        finally:
            helper.kill()
    return by


def _keep(helper: subprocess.Popen[bytes], ids: IdRange, place: Path) -> None:
    try:
        namespace = _with_map(helper, ids.mapping)
        place.touch(mode=0o600)
        mounts.bind(namespace, place)
    except OSError as error:
        raise Unavailable(f"no user namespace for a box can be made: {error.strerror}") from error


def _with_map(helper: subprocess.Popen[bytes], mapping: str) -> Path:
    """Return the user namespace of a helper, with a map of its ids. Raises OSError, Unavailable."""
    if helper.stdout is None or helper.stdout.readline() != b"\n":
        words = helper.stderr.read().decode(errors="replace") if helper.stderr else ""
        raise Unavailable(f"this host has no user namespaces for boxes: {words.strip()}")
    process = Path("/proc", str(helper.pid))
    for kind in ("uid_map", "gid_map"):
        (process / kind).write_text(mapping)
    return process / "ns/user"


def clone_for(source: Path, owner: int, user: int) -> int:
    """Return a descriptor of a directory in which the files of `owner` belong to `user`.

    Both are ids of the host. The disk keeps `owner`. Follows no link at the end of the path. Raises
    OSError, Unavailable.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(source, flags)
    pipe = subprocess.PIPE
    with subprocess.Popen(_HELPER, stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT) as helper:
        try:
            tree = _clone(Path("/proc/self/fd", str(directory)))
            try:
                with _opened(_with_map(helper, f"{owner} {user} 1")) as namespace:
                    _map(tree, namespace, read_only=False)
            except BaseException:
                os.close(tree)
                raise
        finally:
            helper.kill()
            os.close(directory)
    return tree


def unpin(place: Path) -> None:
    """Remove a pinned user namespace. Processes and mounts that use it are not affected."""
    with suppress(OSError):
        mounts.detach(place)
    place.unlink(missing_ok=True)


def bind(source: Path, target: Path, by: IdMap, *, read_only: bool = False) -> None:
    """Mount a directory or mount at a directory of the host, with the ids of a range.

    Replaces what was mounted there. Raises OSError, for example if the file system cannot map ids.
    """
    unbind(target)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    tree = _clone(source)
    try:
        with _opened(by.namespace) as namespace:
            _map(tree, namespace, read_only=read_only)
        _move(tree, target)
        mounts.make_private(target)  # below a shared mount it has become shared
    finally:
        os.close(tree)


def unbind(target: Path) -> None:
    """Undo `bind`. No error if there is nothing. Overlays and boxes keep what they use of it."""
    # `ismount` does not see a mount from the same file system.
    for _ in range(_MOST_LAYERS):
        try:
            mounts.detach(target)
        except OSError:
            break
    with suppress(FileNotFoundError):
        target.rmdir()


def unbind_all(directory: Path) -> None:
    """Undo every `bind` at an entry of a directory, and remove the directory.

    Also removes what a killed service had mounted only for a moment. No error if there is nothing.
    """
    with suppress(FileNotFoundError):
        for place in directory.iterdir():
            unbind(place)
        directory.rmdir()


def mapped_name(number: int) -> str:
    """Return the name of the path that `mapped` yields for a source of this number."""
    return f"mapped-{number}"


@contextmanager
def mapped(by: IdMap, sources: tuple[Path, ...], beside: Path) -> Iterator[list[Path]]:
    """Yield other paths of directories, at which they have the ids of a range.

    The paths are below `beside`. An overlay of them keeps the map after the end of the context.
    """
    with ExitStack() as stack:
        targets = []
        for number, source in enumerate(sources):
            target = beside / mapped_name(number)
            stack.callback(unbind, target)
            bind(source, target, by)
            targets.append(target)
        yield targets


@contextmanager
def acting_as(by: IdMap | None) -> Iterator[None]:
    """Create files as the box's root in this thread, with all rights of the service.

    Through a mount with an id map, root of the host can create nothing, because no id stands for
    it. The body must not wait for other work of the event loop.
    """
    if by is None:
        yield
        return
    _check(_libc.prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0), "prctl")
    try:
        _libc.setfsgid(by.ids.first)
        _libc.setfsuid(by.ids.first)
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
        _check(_libc.prctl(_SET_SECUREBITS, 0, 0, 0, 0), "prctl")


def of_process(pid: int) -> int | None:
    """Return the first id of a process's range; None if it is in the host's user namespace."""
    inner, outer, _ = Path(f"/proc/{pid}/uid_map").read_text().split()[:3]
    return None if inner == outer else int(outer)


@contextmanager
def _opened(namespace: Path) -> Iterator[int]:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _clone(source: Path) -> int:
    flags = ctypes.c_uint(_CLONE | _CLOEXEC)
    return _check(_call(_OPEN_TREE, ctypes.c_int(_AT_FDCWD), os.fsencode(source), flags), source)


def _map(tree: int, namespace: int, *, read_only: bool) -> None:
    options = _IDMAP | (_RDONLY if read_only else 0)
    attributes = _MountAttr(attr_set=options, propagation=_PRIVATE, userns_fd=namespace)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flags = ctypes.c_uint(_AT_EMPTY_PATH)
    _check(
        _call(_MOUNT_SETATTR, ctypes.c_int(tree), b"", flags, ctypes.byref(attributes), size),
        "mapping ids",
    )


def _move(tree: int, target: Path) -> None:
    place = os.fsencode(target)
    flags = ctypes.c_uint(_FROM_DESCRIPTOR)
    _check(
        _call(_MOVE_MOUNT, ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), place, flags), target
    )


def _call(number: int, *arguments: object) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int, what: str | Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(what))
    return result
