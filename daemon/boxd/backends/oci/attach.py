"""Mounts a host mount in a box's mount namespace, or unmounts it. Runs as a separate process.

The process is separate because only a single-threaded process can enter a mount namespace. It can
also be killed when it hangs on a dead file system. The process runs a plain script with Python's
`-I -S`, so it imports only the standard library.

The script reads one JSON object from its standard input. The members are `action` (`attach`,
`detach` or `replace`), `pidfd` (an inherited descriptor of the box's init), `target` (the directory
in the box), and for `attach` the host's `source`. `replace` has `files` instead of both: the host's
source for each file of the box. If the box has its own user namespace, `users` is an inherited
descriptor of it, and `owner` the host's id of its root.

The output is one JSON object: `{"done": true}`, `{"holders": ["pid 7 (bash)", ...]}` if the target
is in use, or `{"error": TEXT}`.
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
_ATTR_RDONLY_NOEXEC = 0x1 | 0x8
_IDMAP = 0x100000
_PRIVATE = 1 << 18
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
_CLONE_NEWNS = 0x20000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_TABLE = "/proc/1/mountinfo"
_TABLE_BYTES = 1024 * 1024
"""Maximum number of bytes to read of the box's mount table. A box that mounts its drive itself can
mount an endless file over it."""
_MAX_LAYERS = 16
"""Maximum number of mounts on top of each other at the target."""

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


def _forbid_devices(tree: int, users: int | None) -> None:
    """Disable set-uid programs and devices on the drive, because its content is untrusted.

    The mount follows no mount of the host. With `users`, the ids of files are those that the box
    sees.
    """
    maps = (0, 0) if users is None else (_IDMAP, users)
    flags = _ATTR_NOSUID_NODEV | maps[0]
    _set(tree, _MountAttr(attr_set=flags, propagation=_PRIVATE, userns_fd=maps[1]))


def _act_as(owner: int) -> None:
    """Create files as the box's root; root of the host has no id there."""
    _check(int(_libc.prctl(_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0)), "prctl")
    _libc.setfsgid(owner)
    _libc.setfsuid(owner)


def _set(tree: int, attributes: _MountAttr) -> None:
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
    """Enter the box's mount namespace.

    After this every path is inside the box. An import would run code of the box, so imports are
    disabled.
    """
    sys.meta_path.clear()
    _check(int(_libc.setns(ctypes.c_int(pidfd), ctypes.c_int(_CLONE_NEWNS))), "setns")


def _mounts_at(target: str) -> list[int]:
    """Return the ids of the mounts at the target, lowest first."""
    with Path(_TABLE).open("rb") as table:
        rows = [line.split(b" ") for line in table.read(_TABLE_BYTES).split(b"\n")]
    return [int(row[0]) for row in rows if row[4:5] == [os.fsencode(target)]]


def _attach(pidfd: int, source: str, target: str, users: int | None) -> None:
    tree = _clone(source)
    _forbid_devices(tree, users)
    _enter(pidfd)
    _clear(target)
    try:
        place = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    except FileNotFoundError:
        Path(target).mkdir(mode=0o755)
        place = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    _move(tree, place)


def _replace(pidfd: int, files: dict[str, str]) -> None:
    """Mount host files read-only over the box's files, in place of earlier mounts there."""
    trees = {target: _clone(source) for target, source in files.items()}
    attributes = _MountAttr(attr_set=_ATTR_NOSUID_NODEV | _ATTR_RDONLY_NOEXEC, propagation=_PRIVATE)
    for tree in trees.values():
        _set(tree, attributes)
    _enter(pidfd)
    for target, tree in trees.items():
        _clear(target)
        _move(tree, os.open(target, os.O_PATH | os.O_NOFOLLOW))


def _clear(target: str) -> None:
    """Unmount everything at the target, even while it is in use."""
    for _ in range(_MAX_LAYERS):
        if not _mounts_at(target):
            break
        _check(int(_libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW)), "umount")


def _move(tree: int, place: int) -> None:
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
    """Unmount the target. Return its holders if it is busy, else an empty list."""
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
        if number in (errno.ENOTCONN, errno.EIO):  # the server of the mount is dead
            _check(int(_libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW)), "umount")
            continue
        raise OSError(number, f"umount: {os.strerror(number)}")
    return []


def _holders(target: str, mount: int) -> list[str]:
    """Return the box's processes (pids inside the box) that use the mount."""
    holders = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
        try:
            if _holds(process, target, mount):
                holders.append(
                    f"pid {process.name} ({(process / 'comm').read_text(errors='replace').strip()})"
                )
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
    return holders


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
    mapped = (
        line.split(maxsplit=5)[5:]
        for line in (process / "maps").read_text(errors="replace").splitlines()
    )
    return any(name and name[0].startswith(f"{target}/") for name in mapped)


def main() -> None:
    """Answer one request from the standard input."""
    request = json.load(sys.stdin)
    answer: dict[str, object] = {"done": True}
    try:
        if request["owner"] is not None:
            _act_as(request["owner"])
        if request["action"] == "attach":
            _attach(request["pidfd"], request["source"], request["target"], request["users"])
        elif request["action"] == "replace":
            _replace(request["pidfd"], request["files"])
        elif holders := _detach(request["pidfd"], request["target"]):
            answer = {"holders": holders}
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
