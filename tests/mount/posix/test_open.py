"""open(2) and what can be done with what it gives."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from tests.mount.posix.tree import ANN, BOB, EVE, ROOT
from tests.mount.posix.twins import open_flags

if TYPE_CHECKING:
    from tests.mount.posix.tree import Tree


def test_what_refuses_to_be_opened(tree: Tree) -> None:
    for kind in ("dir", "socket", "block", "char", "fifo", "symlink"):
        tree.make(kind, kind)
    for flags in ("WRONLY", "RDWR"):
        tree.no(errno.EISDIR, "opened", "dir", open_flags(flags))
    tree.no(errno.EISDIR, "opened", "dir", open_flags("RDONLY", "CREAT"))
    tree.no(errno.EISDIR, "opened", "dir", open_flags("RDONLY", "TRUNC"))
    tree.no(errno.ENXIO, "opened", "socket", open_flags("RDONLY"))
    tree.no(errno.ENXIO, "opened", "fifo", open_flags("WRONLY", "NONBLOCK"))
    tree.ok("opened", "fifo", open_flags("RDWR", "NONBLOCK"))
    for device in ("block", "char"):
        tree.no(errno.EACCES, "opened", device, open_flags("RDONLY", "NONBLOCK"))
    tree.no(errno.ELOOP, "opened", "symlink", open_flags("RDONLY", "NOFOLLOW"))
    tree.no(errno.ENOTDIR, "opened", "fifo", open_flags("RDONLY", "DIRECTORY", "NONBLOCK"))
    tree.ok("opened", "dir", open_flags("RDONLY", "DIRECTORY"))


def test_creating_through_links(tree: Tree) -> None:
    tree.ok("symlink", "goal", "link")
    tree.no(errno.EEXIST, "opened", "link", open_flags("CREAT", "EXCL", "WRONLY"))
    tree.no(errno.ELOOP, "opened", "link", open_flags("CREAT", "NOFOLLOW", "WRONLY"))
    tree.ok("opened", "link", open_flags("CREAT", "WRONLY"), 0o604)
    tree.has("goal", perm=0o604, size=0)


def test_modes_of_what_is_created(tree: Tree) -> None:
    for mode in (0, 0o1, 0o644, 0o7777, 0o4711, 0o2755, 0o1777):
        for umask in (0, 0o22, 0o77, 0o777):
            tree.ok("umask", umask)
            tree.ok("opened", "f", open_flags("CREAT", "RDONLY"), mode)
            tree.ok("mkdir", "d", mode)
            tree.ok("mkfifo", "p", mode)
            tree.ok("umask", 0)
            tree.has("f", perm=mode & ~umask)
            tree.has("p", perm=mode & ~umask)
            tree.has("d", perm=mode & 0o1777 & ~umask)
            for name in ("f", "p"):
                tree.ok("unlink", name)
            tree.ok("rmdir", "d")


def test_a_file_created_without_permissions_is_still_written(tree: Tree) -> None:
    tree.ok("chmod", ".", 0o777)
    for mode in (0, 0o444, 0o200):
        descriptor = tree.ok("open", "f", open_flags("CREAT", "EXCL", "RDWR"), mode, who=ANN)
        assert tree.ok("write", descriptor, b"hello", who=ANN) == 5
        assert tree.ok("pread", descriptor, 9, 0, who=ANN) == b"hello"
        tree.ok("close", descriptor, who=ANN)
        if mode != 0o200:
            tree.no(errno.EACCES, "opened", "f", open_flags("WRONLY"), who=ANN)
        tree.ok("unlink", "f", who=ANN)


def test_permissions_count_when_opening_only(tree: Tree) -> None:
    tree.ok("written", "f", b"secret", open_flags("CREAT", "WRONLY"))
    tree.ok("chmod", "f", 0o666)
    descriptor = tree.ok("open", "f", open_flags("RDWR"), who=BOB)
    tree.ok("chmod", "f", 0)
    assert tree.ok("pread", descriptor, 9, 0, who=BOB) == b"secret"
    assert tree.ok("pwrite", descriptor, b"S", 0, who=BOB) == 1
    tree.ok("ftruncate", descriptor, 3, who=BOB)
    tree.no(errno.EACCES, "opened", "f", open_flags("RDONLY"), who=BOB)
    tree.ok("close", descriptor, who=BOB)


def test_access_modes_of_a_descriptor(tree: Tree) -> None:
    tree.ok("written", "f", b"12345", open_flags("CREAT", "WRONLY"))
    reading = tree.ok("open", "f", open_flags("RDONLY"))
    tree.no(errno.EBADF, "write", reading, b"x")
    tree.no(errno.EINVAL, "ftruncate", reading, 0)
    writing = tree.ok("open", "f", open_flags("WRONLY"))
    tree.no(errno.EBADF, "read", writing, 1)
    path = tree.ok("open", "f", open_flags("PATH"))
    tree.no(errno.EBADF, "read", path, 1)
    tree.no(errno.EBADF, "fchmod", path, 0)
    assert tree.ok("fstat", path)["size"] == 5
    directory = tree.ok("open", ".", open_flags("RDONLY"))
    tree.no(errno.EISDIR, "read", directory, 1)
    tree.no(errno.EINVAL, "ftruncate", directory, 1)
    tree.ok("fsync", directory)
    tree.ok("fchmod", reading, 0o640)
    tree.ok("fchown", reading, 5, 6)
    tree.has("f", perm=0o640, uid=5, gid=6)
    for descriptor in (reading, writing, path, directory):
        tree.ok("close", descriptor)


def test_appending_goes_to_the_end(tree: Tree) -> None:
    descriptor = tree.ok("open", "f", open_flags("CREAT", "RDWR", "APPEND"), 0o644)
    tree.ok("write", descriptor, b"one")
    tree.ok("lseek", descriptor, 0, os.SEEK_SET)
    tree.ok("write", descriptor, b"two")
    tree.ok("truncate", "f", 4)
    tree.ok("write", descriptor, b"three")
    assert tree.ok("content", "f") == b"onetthree"
    tree.ok("close", descriptor)


def test_truncation(tree: Tree) -> None:
    tree.ok("written", "f", b"12345", open_flags("CREAT", "WRONLY"))
    tree.ok("chmod", "f", 0o644)
    for size in (3, 8, 0, 1 << 20, (1 << 63) - 1, 5):
        if size < 1 << 40 or tree.is_drive:
            tree.ok("truncate", "f", size)
            tree.has("f", size=size)
    assert tree.ok("content", "f") == bytes(5)
    tree.no(errno.EINVAL, "truncate", "f", -1)
    tree.no(errno.EACCES, "truncate", "f", 0, who=BOB)
    tree.make("dir", "d")
    tree.make("fifo", "p")
    tree.no(errno.EISDIR, "truncate", "d", 0)
    tree.no(errno.EINVAL, "truncate", "p", 0)
    # Cut by a descriptor that may only read: Linux cuts, when the file may be written.
    tree.ok("opened", "f", open_flags("RDONLY", "TRUNC"))
    tree.has("f", size=0)


def test_text_file_busy(tree: Tree) -> None:
    tree.ok("written", "true", b"#!/bin/sh\nexit 3\n", open_flags("CREAT", "WRONLY"))
    tree.no(errno.EACCES, "execute", "./true")
    tree.ok("chmod", "true", 0o755)
    assert tree.ok("execute", "./true") == 3
    assert tree.ok("execute", "./true", who=EVE) == 3
    descriptor = tree.ok("open", "true", open_flags("WRONLY"))
    tree.no(errno.ETXTBSY, "execute", "./true")
    tree.ok("close", descriptor)
    tree.ok("written", "bad", b"\x7fnot a program", open_flags("CREAT", "WRONLY"))
    tree.ok("chmod", "bad", 0o755)
    tree.no(errno.ENOEXEC, "execute", "./bad")


def test_noatime_is_for_the_owner(tree: Tree) -> None:
    tree.make("file", "f", ANN)
    tree.no(errno.EPERM, "opened", "f", open_flags("RDONLY", "NOATIME"), who=BOB)
    for who in (ANN, ROOT):
        tree.ok("opened", "f", open_flags("RDONLY", "NOATIME"), who=who)


@pytest.mark.parametrize("kind", ["file", "dir", "fifo", "symlink", "socket", "char"])
def test_what_lost_its_name_still_has_attributes(tree: Tree, kind: str) -> None:
    for way in ("remove", "replace"):
        tree.make(kind, "n")
        descriptor = tree.ok("open", "n", open_flags("PATH", "NOFOLLOW"))
        before = tree.ok("fstat", descriptor)
        if way == "remove":
            tree.remove(kind, "n")
        else:
            other = "dir" if kind == "dir" else "file"
            tree.make(other, "o")
            tree.ok("rename", "o", "n")
            tree.remove(other, "n")
        after = tree.ok("fstat", descriptor)
        assert after["nlink"] == 0
        for name in ("ino", "mode", "uid", "gid", "rdev", "mtime_ns"):
            assert after[name] == before[name], name
        tree.ok("close", descriptor)


def test_a_removed_working_directory(tree: Tree) -> None:
    tree.make("dir", "d", ANN)
    tree.ok("chdir", "d", who=ANN)
    tree.ok("rmdir", "d")
    assert tree.ok("stat", ".", who=ANN)["nlink"] == 0
    tree.no(errno.ENOENT, "mkdir", "x", 0o755, who=ANN)
    tree.no(errno.ENOENT, "opened", "x", open_flags("CREAT", "WRONLY"), who=ANN)
    tree.no(errno.ENOENT, "symlink", "x", "y", who=ANN)
    assert tree.ok("listdir", ".", who=ANN) == []
    tree.ok("chdir", "..", who=ANN)
    tree.ok("stat", ".", who=ANN)


def test_an_open_fifo_without_name(tree: Tree) -> None:
    tree.make("fifo", "p")
    descriptor = tree.ok("open", "p", open_flags("RDWR", "NONBLOCK"))
    tree.ok("unlink", "p")
    assert tree.ok("write", descriptor, b"through") == 7
    assert tree.ok("read", descriptor, 100) == b"through"
    assert tree.ok("fstat", descriptor)["nlink"] == 0
    tree.ok("close", descriptor)


def test_sockets(tree: Tree) -> None:
    tree.ok("bind", "s")
    tree.no(errno.EADDRINUSE, "bind", "s")
    tree.no(errno.ECONNREFUSED, "connect", "s")
    tree.ok("chmod", "s", 0o600)
    tree.no(errno.EACCES, "connect", "s", who=BOB)


def test_flock(tree: Tree) -> None:
    tree.ok("opened", "f", open_flags("CREAT", "RDWR"), 0o666)
    mine = tree.ok("open", "f", open_flags("RDWR"))
    theirs = tree.ok("open", "f", open_flags("RDWR"), who=BOB)
    tree.ok("lock", mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    tree.no(errno.EWOULDBLOCK, "lock", theirs, fcntl.LOCK_SH | fcntl.LOCK_NB, who=BOB)
    tree.ok("close", mine)
    tree.ok("lock", theirs, fcntl.LOCK_SH | fcntl.LOCK_NB, who=BOB)
    tree.ok("close", theirs, who=BOB)
