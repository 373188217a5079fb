"""A process that makes system calls as one user below one directory; run as a program.

`actor.py UID GID GROUP...`: it goes on in its working directory with these credentials. A request
is a line `(name, arguments)` on stdin, its answer a line `(errno, result)` on stdout, both as
Python literals; errno is 0 for success. For a list of calls the answer is a list of answers.
"""

from __future__ import annotations

import ast
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
SYS_UTIMENSAT = 280
Answer = tuple[int, Any]
Picture = dict[bytes, dict[str, Any]]


def checked(result: int) -> int:
    """Raises what a failed call of the C library left in errno."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "call failed")
    return result


def fields(found: os.stat_result) -> dict[str, int]:
    """stat(2) as a dictionary, times in nanoseconds."""
    names = ("ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks")
    times = ("atime_ns", "mtime_ns", "ctime_ns")
    return {name: getattr(found, f"st_{name}") for name in names + times}


def utimens(path: bytes | int | None, atime: int, mtime: int, flags: int = 0) -> None:
    """utimensat(2) with nanoseconds or UTIME_NOW, UTIME_OMIT (as the whole time)."""

    def spec(value: int) -> bytes:
        if value in (UTIME_NOW, UTIME_OMIT):
            return struct.pack("qq", 0, value)
        return struct.pack("qq", *divmod(value, 10**9))

    buffer = ctypes.create_string_buffer(spec(atime) + spec(mtime))
    directory, name = (path, None) if isinstance(path, int) else (AT_FDCWD, path)
    checked(libc.syscall(SYS_UTIMENSAT, directory, name, buffer, flags))


def utime_null(path: bytes) -> None:
    """utime(2) without times: needs write permission only."""
    os.utime(path)


def rename2(old: bytes, new: bytes, flags: int) -> None:
    """renameat2(2)."""
    checked(libc.renameat2(AT_FDCWD, old, AT_FDCWD, new, flags))


def linkat(old: bytes, new: bytes, flags: int = 0) -> None:
    """linkat(2)."""
    checked(libc.linkat(AT_FDCWD, old, AT_FDCWD, new, flags))


def link_fd(descriptor: int, new: bytes) -> None:
    """linkat(2) of an open file by AT_EMPTY_PATH."""
    checked(libc.linkat(descriptor, b"", AT_FDCWD, new, 0x1000))


def bind(path: bytes) -> None:
    """bind(2) of a local socket: makes the name."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


def connect(path: bytes) -> None:
    """connect(2) to a local socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def listdir(path: bytes) -> list[bytes]:
    """Names, sorted."""
    return sorted(os.listdir(path))


def opened(path: bytes, flags: int, mode: int = 0o777) -> None:
    """open(2), and close again."""
    os.close(os.open(path, flags, mode))


def written(path: bytes, data: bytes, flags: int = os.O_WRONLY) -> int:
    """open(2), one write(2), close(2)."""
    descriptor = os.open(path, flags, 0o666)
    try:
        return os.write(descriptor, data)
    finally:
        os.close(descriptor)


def content(path: bytes, size: int = 1 << 20) -> bytes:
    """open(2), one read(2), close(2)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def mapped_write(path: bytes, offset: int, data: bytes) -> None:
    """Changes a file through a shared mapping."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 0) as mapped:
            mapped[offset : offset + len(data)] = data
            mapped.flush()
    finally:
        os.close(descriptor)


def execute(path: bytes) -> int:
    """Runs a program; its exit status. The errno of execve(2) as an error."""
    child = os.posix_spawn(path, [b"program"], {})
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lock(descriptor: int, kind: int) -> None:
    """flock(2)."""
    fcntl.flock(descriptor, kind)


def call_allocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2)."""
    wide = ctypes.c_longlong
    checked(libc.fallocate(descriptor, mode, wide(offset), wide(length)))


def ioctl(descriptor: int, request: int) -> None:
    """ioctl(2) without an argument."""
    fcntl.ioctl(descriptor, request)


def capability(number: int) -> bool:
    """Whether this process has an effective capability."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> number & 1)


def handle(path: bytes) -> bytes:
    """name_to_handle_at(2)."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(AT_FDCWD, path, buffer, ctypes.byref(mount), 0))
    return bytes(buffer)


def open_handle(found: bytes, flags: int) -> int:
    """open_by_handle_at(2), on the filesystem of the working directory."""
    top = os.open(b".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return checked(libc.open_by_handle_at(top, found, flags))
    finally:
        os.close(top)


def set_attribute(
    path: bytes, name: bytes, value: bytes, flags: int = 0, follow: bool = True
) -> None:
    """setxattr(2), lsetxattr(2)."""
    os.setxattr(path, name, value, flags, follow_symlinks=follow)


def picture(top: bytes) -> Picture:
    """Everything below a directory, itself included: attributes, contents, xattrs by path."""
    found: Picture = {top: dict(fields(os.lstat(top)), content=attributes(top))}
    for name in sorted(os.listdir(top)):
        path = top + b"/" + name
        one: dict[str, Any] = dict(fields(os.lstat(path)))
        if stat.S_ISDIR(one["mode"]):
            found |= picture(path)
            continue
        one["content"] = (b"", [])
        if stat.S_ISLNK(one["mode"]):
            one["content"] = (os.readlink(path), [])
        elif stat.S_ISREG(one["mode"]):
            one["content"] = (content(path) if one["size"] < 1 << 20 else b"", attributes(path))
        found[path] = one
    return found


def attributes(path: bytes) -> list[tuple[str, bytes]]:
    """Extended attributes of the namespaces that users see."""
    names = [name for name in os.listxattr(path) if name.startswith(("user.", "trusted."))]
    return sorted((name, os.getxattr(path, name)) for name in names)


OWN: dict[str, Callable[..., Any]] = {
    "access": lambda path, mode: checked(libc.access(path, mode)),
    "bind": bind,
    "capability": capability,
    "connect": connect,
    "content": content,
    "execute": execute,
    "fallocate": call_allocate,
    "fstat": lambda descriptor: fields(os.fstat(descriptor)),
    "handle": handle,
    "ioctl": ioctl,
    "link": linkat,
    "link_fd": link_fd,
    "listdir": listdir,
    "listxattr": lambda path, follow=True: sorted(os.listxattr(path, follow_symlinks=follow)),
    "lock": lock,
    "lstat": lambda path: fields(os.lstat(path)),
    "mapped_write": mapped_write,
    "open_handle": open_handle,
    "opened": opened,
    "picture": picture,
    "rename2": rename2,
    "stat": lambda path: fields(os.stat(path)),
    "setxattr": set_attribute,
    "statvfs": lambda path: tuple(os.statvfs(path)),
    "utime_null": utime_null,
    "utimens": utimens,
    "written": written,
}


def answer(name: str, arguments: tuple[Any, ...]) -> Answer:
    """Makes one call."""
    try:
        function = OWN.get(name) or getattr(os, name)
        return 0, function(*arguments)
    except OSError as error:
        return error.errno or errno.EIO, None
    except (OverflowError, TypeError, ValueError) as error:
        return -1, repr(error)


def main() -> None:
    """Serves until the end of stdin."""
    uid, gid, *groups = map(int, sys.argv[1:])
    os.umask(0)
    if uid:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    for line in sys.stdin:
        request = ast.literal_eval(line)
        if isinstance(request, list):
            reply: object = [answer(*one) for one in request]
        else:
            reply = answer(*request)
        sys.stdout.write(f"{reply!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
