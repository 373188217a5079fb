"""Puts a host mount into a box's mount namespace, or takes it away. Runs as its own process.

A process and not a thread: entering a mount namespace is for single-threaded processes, and one
that hangs on a dead file system can be killed. It is run as a bare script with Python's `-I -S`,
so it imports nothing but the standard library.

It reads one JSON object from its standard input: `action` (`attach` or `detach`), `pidfd` (an
inherited descriptor of the box's init), `target` (the directory in the box), and for `attach` the
host's `source`. It prints one: `{"done": true}`, `{"holders": ["pid 7 (bash)", ...]}` when the
target is in use, or `{"error": TEXT}`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from pathlib import Path

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_FROM_AND_TO_DESCRIPTORS = 0x4 | 0x40
_ATTR_NOSUID_NODEV = 0x2 | 0x4
_CLONE_NEWNS = 0x20000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_MAX_LAYERS = 16
"""Mounts that can lie upon each other at TARGET before we give up."""

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: object) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def _clone(source: str) -> int:
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    return _check(
        _syscall(_OPEN_TREE, ctypes.c_int(_AT_FDCWD), source.encode(), flags), "open_tree"
    )


def _forbid_devices(tree: int) -> None:
    """The drive's content is its owner's: neither set-uid programs nor devices work from it."""
    attributes = _MountAttr(attr_set=_ATTR_NOSUID_NODEV)
    _check(
        _syscall(
            _MOUNT_SETATTR,
            ctypes.c_int(tree),
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
        "mount_setattr",
    )


def _enter(pidfd: int) -> None:
    """Enters the box's mount namespace. From here on every path is the box's, so nothing may be
    imported any more: it would be the box's code."""
    sys.meta_path.clear()
    _check(int(_libc.setns(ctypes.c_int(pidfd), ctypes.c_int(_CLONE_NEWNS))), "setns")


def _mounts_at(target: str) -> list[int]:
    """Ids of the mounts at TARGET, lowest first."""
    rows = [line.split() for line in Path("/proc/1/mountinfo").read_text().splitlines()]
    return [int(row[0]) for row in rows if row[4] == target]


def _attach(pidfd: int, source: str, target: str) -> None:
    tree = _clone(source)
    _forbid_devices(tree)
    _enter(pidfd)
    for _ in range(_MAX_LAYERS):
        if not _mounts_at(target):
            break
        _check(int(_libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW)), "umount")
    try:
        place = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    except FileNotFoundError:
        Path(target).mkdir(mode=0o755)
        place = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    _check(
        _syscall(
            _MOVE_MOUNT,
            ctypes.c_int(tree),
            b"",
            ctypes.c_int(place),
            b"",
            ctypes.c_uint(_MOVE_MOUNT_FROM_AND_TO_DESCRIPTORS),
        ),
        "move_mount",
    )


def _detach(pidfd: int, target: str) -> list[str]:
    """Returns the holders when TARGET is busy, else nothing."""
    _enter(pidfd)
    for _ in range(_MAX_LAYERS):
        mounts = _mounts_at(target)
        if not mounts:
            break
        if _libc.umount2(target.encode(), _UMOUNT_NOFOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            return _holders(target, mounts[-1]) or ["a process that has just ended"]
        if number in (errno.ENOTCONN, errno.EIO):  # its server is dead: nothing can be kept
            _check(int(_libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW)), "umount")
            continue
        raise OSError(number, f"umount: {os.strerror(number)}")
    return []


def _holders(target: str, mount: int) -> list[str]:
    """The box's processes (by its own pids) that have something on the mount in use."""
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
        try:
            if _holds(process, target, mount):
                found.append(f"pid {process.name} ({(process / 'comm').read_text().strip()})")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def _holds(process: Path, target: str, mount: int) -> bool:
    links = [process / "cwd", process / "root", process / "exe"]
    for link in links:
        try:
            place = os.readlink(link)
        except OSError:
            continue  # kernel threads and zombies have none
        if place == target or place.startswith(f"{target}/"):
            return True
    marker = f"mnt_id:\t{mount}"
    for info in (process / "fdinfo").glob("*"):
        try:
            if marker in info.read_text().splitlines():
                return True
        except FileNotFoundError:
            continue  # closed meanwhile
    mapped = (line.split(maxsplit=5)[5:] for line in (process / "maps").read_text().splitlines())
    return any(name and name[0].startswith(f"{target}/") for name in mapped)


def main() -> None:
    """Answers one request; see the module's text."""
    request = json.load(sys.stdin)
    answer: dict[str, object] = {"done": True}
    try:
        if request["action"] == "attach":
            _attach(request["pidfd"], request["source"], request["target"])
        elif holders := _detach(request["pidfd"], request["target"]):
            answer = {"holders": holders}
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
