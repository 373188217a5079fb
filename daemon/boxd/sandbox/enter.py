"""Enters a sandbox and executes a program in it: `python -m boxd.sandbox.enter FD PROGRAM ...`.

The descriptor has the document of `Sandbox.command`. The process must be root. It keeps its pid.
After an error, nothing is executed, and the exit status is 1. A process that already runs calls
`enter` instead.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

_NEWNS, _NEWNET = 0x00020000, 0x40000000
_NOSUID, _NODEV, _RDONLY, _NOEXEC = 2, 4, 1, 8
_REMOUNT, _BIND, _REC, _SLAVE = 1 << 5, 1 << 12, 1 << 14, 1 << 19
_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _RECURSIVE = 442, -100, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
"""Numbers of the system call pivot_root, which the C library has no function for."""
_CAPBSET_DROP, _SET_NO_NEW_PRIVS, _SET_SECCOMP = 24, 38, 22
_FILTER_MODE = 2
_LAST_CAP = Path("/proc/sys/kernel/cap_last_cap")
_TEMPORARY = ("tmp", "dev/shm")
"""Directories for temporary files, which only the sandbox sees."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """Attributes of a mount: `struct mount_attr`. The flags have the values of mount(2)."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("namespace", ctypes.c_uint64),
    )


class _Program(ctypes.Structure):
    """A filter in the kernel's form: `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def main() -> int:
    """Enter the sandbox and execute the program."""
    descriptor, program = int(sys.argv[1]), sys.argv[2:]
    with os.fdopen(descriptor, "rb") as file:
        document: dict[str, Any] = json.load(file)
    try:
        enter(document)
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"boxd.sandbox.enter: cannot start {program[0]}: {error}\n")
        return 1


def enter(document: dict[str, Any]) -> None:
    """Enter the sandbox with this process, for ever. Descriptors that the caller has open stay.

    The process must be root and have one thread, because the kernel changes single threads. Raises
    OSError; then the process must end, because it may have entered a part of the sandbox.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError(errno.EBUSY, "a process with several threads cannot enter a sandbox")
    if not document["network"]:
        _check(_libc.unshare(_NEWNET), "a network namespace")
    mask = os.umask(0o022)  # for the directories of the new root
    _enter_root(document["readable"], document["writable"])
    os.umask(mask)
    _drop_rights(document["user"], document["group"])
    _filter_calls(base64.b64decode(document["filter"]))


def _enter_root(readable: list[str], writable: list[str]) -> None:
    """Change the root to one with these paths, in an own mount namespace."""
    _check(_libc.unshare(_NEWNS), "a mount namespace")
    # As a slave, the namespace does not keep what the host unmounts.
    _mount(None, "/", None, _SLAVE | _REC)
    paths = [(path, _RDONLY) for path in [*readable, "/proc"]] + [(path, 0) for path in writable]
    # Opened first, because the new root hides the directory on which it is mounted.
    sources = [(path, flags, _open(path)) for path, flags in paths]
    root = tempfile.gettempdir()
    old = f"{root}/.host"
    _mount("sandbox", root, "tmpfs", _NOSUID | _NODEV, "mode=755,size=64k,nr_inodes=4k")
    for name in _TEMPORARY:
        place = f"{root}/{name}"
        os.makedirs(place)
        _mount("tmp", place, "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=1777,size=64m")
    for path, flags, source in sources:
        _show(path, root, flags, source)
        os.close(source)  # a descriptor of a directory leads to all of the host's files
    os.mkdir(old, 0o700)
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], root.encode(), old.encode()), root)
    os.chdir("/")
    _check(_libc.umount2(b"/.host", _DETACH), "/.host")
    os.rmdir("/.host")
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _open(path: str) -> int:
    """Open a path. Links of the system, such as /bin, stay links; others are followed."""
    follow = os.O_NOFOLLOW if path.count("/") == 1 else 0
    return os.open(path, os.O_PATH | os.O_CLOEXEC | follow)


def _show(path: str, root: str, flags: int, source: int) -> None:
    """Make a path of the host appear below the new root."""
    place = root + path
    if os.path.lexists(place):
        return  # a part of an earlier path
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if stat.S_ISLNK(os.fstat(source).st_mode):
        os.symlink(os.readlink("", dir_fd=source), place)
        return
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    _mount(f"/proc/self/fd/{source}", place, None, _BIND | _REC)
    attributes = _Attributes(flags | _NOSUID | (0 if path.startswith("/dev/") else _NODEV))
    size = ctypes.sizeof(attributes)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(place), _RECURSIVE, ctypes.byref(attributes), size
    )
    _check(result, path)


def _drop_rights(user: int, group: int) -> None:
    """Become an unprivileged user for ever."""
    for capability in range(int(_LAST_CAP.read_text()) + 1):
        _check(_libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0), "a capability")
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)  # clears all capabilities
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no-new-privs")


def _filter_calls(code: bytes) -> None:
    program = _Program(len(code) // 8, code)
    _check(_libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0), "seccomp")


def _mount(
    source: str | None, place: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, options)]
    what, where, how, data = texts
    _check(_libc.mount(what, where, how, ctypes.c_ulong(flags), data), place)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    sys.exit(main())
