"""File transfer over the box's root: sftp, and `scp -O` if the image has no scp.

Protocol adapter only. File operations run in one thread for each SSH session, because any path may
lead to a slow drive. The event loop serves everything else in the box. The thread costs 10 % of the
processor time of a download with OpenSSH's block size.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, cast

import asyncssh
from asyncssh.scp import run_scp_server
from asyncssh.sftp import run_sftp_server
from asyncssh.stream import SSHServerStreamSession

from box_guest.shared.command_bytes import is_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from io import FileIO

_T = TypeVar("_T")

NOT_TEXT = (
    b"scp: a name is not UTF-8; omit -O, or install scp in the box (package openssh-client)\n"
)
"""Error text of scp for a name that is not UTF-8."""
BATCH = 256
"""Directory entries that one call reads."""


class BoxSFTP(asyncssh.SFTPServer):
    """SFTP operations on the whole box; relative paths start at the account's home.

    All operations raise OSError; asyncssh translates it to an SFTP status.
    """

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes], home: str) -> None:
        super().__init__(chan)
        self._home = os.fsencode(home)
        self._thread = ThreadPoolExecutor(1, "sftp")

    def map_path(self, path: bytes) -> bytes:
        """Return the absolute path of a client's path."""
        return os.path.join(self._home, path)

    def exit(self) -> None:
        """End the SSH session with status 0, without which OpenSSH's scp reports a failure."""
        self.channel.exit(0)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Awaitable[object]:
        """Open a file (SFTP version 3 flags)."""
        return self._run(super().open, path, pflags, attrs)

    def close(self, file_obj: object) -> Awaitable[None]:
        """Close an open file."""
        return self._run(super().close, file_obj)

    def read(self, file_obj: object, offset: int, size: int) -> Awaitable[bytes]:
        """Read at most `size` bytes at `offset`."""
        return self._run(os.pread, cast("FileIO", file_obj).fileno(), size, offset)

    def write(self, file_obj: object, offset: int, data: bytes) -> Awaitable[int]:
        """Write all of `data` at `offset`; return its length in bytes."""
        return self._run(_write_all, cast("FileIO", file_obj).fileno(), offset, data)

    def lstat(self, path: bytes) -> Awaitable[os.stat_result]:
        """Return the attributes of a path, not following a symbolic link."""
        return self._run(os.lstat, self.map_path(path))

    def stat(self, path: bytes) -> Awaitable[os.stat_result]:
        """Return the attributes of a path."""
        return self._run(os.stat, self.map_path(path))

    def fstat(self, file_obj: object) -> Awaitable[os.stat_result]:
        """Return the attributes of an open file."""
        return self._run(os.fstat, cast("FileIO", file_obj).fileno())

    def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Awaitable[None]:
        """Set the attributes of a path."""
        return self._run(super().setstat, path, attrs)

    def lsetstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Awaitable[None]:
        """Set the attributes of a path, not following a symbolic link."""
        return self._run(super().lsetstat, path, attrs)

    def fsetstat(self, file_obj: object, attrs: asyncssh.SFTPAttrs) -> Awaitable[None]:
        """Set the attributes of an open file."""
        return self._run(super().fsetstat, file_obj, attrs)

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        """Yield the entries of a directory with their attributes, BATCH at a time."""
        directory = self.map_path(path)
        entries = _entries(directory)
        while batch := await self._run(_take, entries):
            for name in batch:
                yield name

    def remove(self, path: bytes) -> Awaitable[None]:
        """Remove a file."""
        return self._run(os.remove, self.map_path(path))

    def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Awaitable[None]:
        """Create a directory."""
        return self._run(super().mkdir, path, attrs)

    def rmdir(self, path: bytes) -> Awaitable[None]:
        """Remove an empty directory."""
        return self._run(os.rmdir, self.map_path(path))

    def realpath(self, path: bytes) -> Awaitable[bytes]:
        """Return the path without symbolic links."""
        return self._run(os.path.realpath, self.map_path(path))

    def rename(self, oldpath: bytes, newpath: bytes) -> Awaitable[None]:
        """Rename a file. Fails if the new name exists."""
        return self._run(super().rename, oldpath, newpath)

    def posix_rename(self, oldpath: bytes, newpath: bytes) -> Awaitable[None]:
        """Rename a file, replacing the new name."""
        return self._run(os.replace, self.map_path(oldpath), self.map_path(newpath))

    def readlink(self, path: bytes) -> Awaitable[bytes]:
        """Return the target of a symbolic link."""
        return self._run(os.readlink, self.map_path(path))

    def symlink(self, oldpath: bytes, newpath: bytes) -> Awaitable[None]:
        """Create a symbolic link at `newpath`."""
        # The target is stored as given, even if it does not exist.
        return self._run(os.symlink, oldpath, self.map_path(newpath))

    def link(self, oldpath: bytes, newpath: bytes) -> Awaitable[None]:
        """Create a hard link at `newpath`, not following a symbolic link."""
        return self._run(
            partial(os.link, follow_symlinks=False), self.map_path(oldpath), self.map_path(newpath)
        )

    def statvfs(self, path: bytes) -> Awaitable[os.statvfs_result]:
        """Return the statistics of the file system at a path."""
        return self._run(os.statvfs, self.map_path(path))

    def fstatvfs(self, file_obj: object) -> Awaitable[os.statvfs_result]:
        """Return the statistics of the file system of an open file."""
        return self._run(os.statvfs, cast("FileIO", file_obj).fileno())

    def fsync(self, file_obj: object) -> Awaitable[None]:
        """Make an open file durable."""
        return self._run(os.fsync, cast("FileIO", file_obj).fileno())

    def _run(self, call: Callable[..., _T | Awaitable[_T]], *arguments: object) -> Awaitable[_T]:
        # asyncssh declares its operations as "value or awaitable"; its own methods return values.
        blocking = cast("Callable[..., _T]", call)
        return asyncio.get_running_loop().run_in_executor(self._thread, blocking, *arguments)


class TransferSession(SSHServerStreamSession[bytes]):
    """One sftp or scp session channel: asyncssh's servers on top of BoxSFTP.

    A failure ends only the session's own channel; asyncssh would close the connection.
    """

    def __init__(self, home: str, failed: Callable[[Exception], None]) -> None:
        super().__init__(None)
        self._home = home
        self._failed = failed

    def session_started(self) -> None:
        """Start the sftp or scp server."""
        chan = cast("asyncssh.SSHServerChannel[bytes]", self._chan)
        # Existing clients send the arguments of SYMLINK in OpenSSH's order. asyncssh decides by the
        # client's version, but the client of a tunnel is the daemon, whatever the user's client is.
        chan.set_extra_info(client_version="SSH-2.0-OpenSSH")
        chan.get_connection().create_task(self._serve(chan))

    def signal_received(self, signal: str) -> None:
        """End the session as a program would: `PIPE` arrives when a client stops reading."""
        cast("asyncssh.SSHServerChannel[bytes]", self._chan).exit_with_signal(signal)

    def break_received(self, msec: int) -> bool:
        """Ignore a line break: there is no terminal."""
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Ignore a new window size; asyncssh's default would interrupt a read."""

    async def _serve(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        stdin = asyncssh.SSHReader[bytes](self, chan)
        stdout = asyncssh.SSHWriter[bytes](self, chan)
        stderr = asyncssh.SSHWriter[bytes](self, chan, asyncssh.EXTENDED_DATA_STDERR)
        files = BoxSFTP(chan, self._home)
        try:
            command = chan.get_command()
            if command is None:
                await run_sftp_server(files, stdin, stdout, 3)
            elif not is_text(command):
                stderr.write(NOT_TEXT)
                chan.exit(1)
            else:
                serving = run_scp_server(files, command, stdin, stdout, stderr)
                if serving is not None:
                    await serving
        except EOFError:
            chan.exit(0)  # the client left before its first message; OpenSSH's server returns 0 too
        except Exception as error:
            # A failure of one channel must not end the others.
            self._failed(error)
            chan.exit(1)


def _take(entries: Iterator[asyncssh.SFTPName]) -> list[asyncssh.SFTPName]:
    return list(islice(entries, BATCH))


def _write_all(descriptor: int, offset: int, data: bytes) -> int:
    """Write all data or raise: a full disk may accept only the first part."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
    return len(data)


def _entries(directory: bytes) -> Iterator[asyncssh.SFTPName]:
    """Yield entries with attributes; entries that vanish meanwhile are omitted."""
    for name in (b".", b".."):
        attrs = asyncssh.SFTPAttrs.from_local(os.stat(directory + b"/" + name))
        yield asyncssh.SFTPName(name, attrs=attrs)
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                attrs = asyncssh.SFTPAttrs.from_local(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            yield asyncssh.SFTPName(entry.name, attrs=attrs)
