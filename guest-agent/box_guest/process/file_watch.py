"""Watches a directory for changes and reports them, joined over a short time.

One event loop runs all methods; no method awaits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections import deque
from typing import TYPE_CHECKING

from box_guest.process import inotify
from box_guest.process.inotify import Inotify
from box_guest.shared.requests import BAD, CONFLICT, FAILED, FULL, MISSING, Refused
from box_guest.shared.watch_messages import (
    CREATED,
    END,
    MAX_PATH,
    MAX_WATCHES,
    MODIFIED,
    MOVED,
    OVERFLOW,
    REMOVED,
    FileEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOIN_S = 0.05
"""Seconds over which changes of the same path are joined."""
MAX_PENDING = 4096
"""Maximum number of paths with changes that wait for the reader; further changes are lost."""
MAX_DEPTH = 256
"""Maximum depth of directories below the watched one."""
_FUSE = b"fuse"


class FileWatch:
    """Watches one directory; with `recursive` also those below it on the same file system.

    `send` gets the events; it may be called until `close`. While `pause` is in effect, changes
    collect, up to MAX_PENDING.
    """

    def __init__(
        self,
        path: bytes,
        *,
        recursive: bool,
        send: Callable[[FileEvent], None],
        limit: int = MAX_WATCHES,
    ) -> None:
        """Raises Refused if the path is not a directory that can be watched."""
        self._root = path
        self._recursive = recursive
        self._send = send
        self._limit = limit
        self._device = _checked(path)
        self._paths: dict[int, bytes] = {}
        self._changes: dict[bytes, FileEvent] = {}
        self._moves: dict[int, tuple[bytes, bool]] = {}
        self._lost = False
        self._paused = False
        self._end = ""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._inotify = Inotify()
        except OSError as error:
            text = f"the box allows no further file watch: {error.strerror}; end another one first"
            raise Refused(FULL, text) from None
        self._open = True
        try:
            for _ in self._add(path):
                pass
            if not self._paths:
                raise Refused(MISSING, f"{_shown(path)}: no such directory")
        except BaseException:
            self._inotify.close()
            raise
        self._loop.add_reader(self._inotify.descriptor, self._read)

    @property
    def watches(self) -> int:
        """Number of watched directories."""
        return len(self._paths)

    def close(self) -> None:
        """Stop watching. Does nothing if already closed."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._inotify.descriptor)
            self._inotify.close()
            if self._timer is not None:
                self._timer.cancel()

    def pause(self) -> None:
        """Send no events for now: the reader is slow."""
        self._paused = True

    def resume(self) -> None:
        """Send events again."""
        self._paused = False
        self._schedule()

    def _add(self, top: bytes) -> Iterator[tuple[bytes, bool]]:
        """Watch a directory and those below it; yield (path, is a directory) of all entries below.

        Raises Refused if there are too many directories. Skips what has vanished meanwhile.
        """
        waiting = deque([(top, 0)])
        while waiting:
            path, depth = waiting.popleft()
            try:
                if os.lstat(path).st_dev != self._device:
                    continue
                self._paths[self._inotify.add(path)] = path
                entries = list(os.scandir(path))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise self._too_many() from None
                if path == self._root and error.errno in (errno.EACCES, errno.EPERM):
                    raise Refused(FAILED, f"{_shown(path)}: {error.strerror}") from None
                continue
            if len(self._paths) + len(waiting) > self._limit:
                raise self._too_many()
            for entry in entries:
                is_dir = _is_directory(entry)
                yield entry.path, is_dir
                if is_dir and self._recursive and depth < MAX_DEPTH and _fits(entry.path):
                    waiting.append((entry.path, depth + 1))

    def _too_many(self) -> Refused:
        return Refused(
            FULL,
            f"{_shown(self._root)} contains more directories than a watch may have (at most"
            f" {self._limit}, and what the host allows); watch a directory below it",
        )

    def _read(self) -> None:
        try:
            for event in self._inotify.read():
                self._take(event)
        except Refused as error:
            self._finish(str(error))
        except OSError as error:
            self._finish(f"the watch failed: {error.strerror}")
        self._schedule()

    def _take(self, event: inotify.Event) -> None:
        if event.mask & inotify.Q_OVERFLOW:
            self._lost = True
            return
        directory = self._paths.get(event.watch)
        if directory is None:
            return
        if event.mask & inotify.IGNORED:
            del self._paths[event.watch]
        if not event.name:
            if directory == self._root and event.mask & (
                inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT
            ):
                self._change(FileEvent(REMOVED, _text(directory), True))
                self._finish(f"{_shown(directory)} was removed or moved")
            return
        path, is_dir = os.path.join(directory, event.name), bool(event.mask & inotify.ISDIR)
        if _fits(path):
            self._entry(path, event, is_dir=is_dir)

    def _entry(self, path: bytes, event: inotify.Event, *, is_dir: bool) -> None:
        if event.mask & inotify.MOVED_FROM:
            self._moves[event.cookie] = path, is_dir
        elif event.mask & inotify.MOVED_TO:
            source = self._moves.pop(event.cookie, None)
            if source is None:
                self._created(path, is_dir=is_dir)
            else:
                self._moved(source[0], path, is_dir=is_dir)
        elif event.mask & inotify.CREATE:
            self._created(path, is_dir=is_dir)
        elif event.mask & inotify.DELETE:
            self._change(FileEvent(REMOVED, _text(path), is_dir))
        elif event.mask & (inotify.MODIFY | inotify.ATTRIB):
            self._change(FileEvent(MODIFIED, _text(path), is_dir))

    def _created(self, path: bytes, *, is_dir: bool) -> None:
        self._change(FileEvent(CREATED, _text(path), is_dir))
        if is_dir and self._recursive:
            # Entries that were created before the watch began have no event of their own.
            for entry, below in self._add(path):
                self._change(FileEvent(CREATED, _text(entry), below))

    def _moved(self, source: bytes, path: bytes, *, is_dir: bool) -> None:
        before = self._changes.pop(source, None)
        origin = _text(source)
        if before is not None and before.kind == MOVED:
            origin = before.source or origin
        if before is not None and before.kind == CREATED:
            self._change(FileEvent(CREATED, _text(path), is_dir))
        else:
            self._change(FileEvent(MOVED, _text(path), is_dir, source=origin))
        if is_dir:
            prefix = source + b"/"
            for watch, old in self._paths.items():
                if old == source or old.startswith(prefix):
                    self._paths[watch] = path + old[len(source) :]

    def _left(self) -> None:
        """Report entries that were moved out of the watched directories, as removed."""
        for path, is_dir in self._moves.values():
            self._change(FileEvent(REMOVED, _text(path), is_dir))
            if is_dir:
                prefix = path + b"/"
                gone = [
                    w for w, old in self._paths.items() if old == path or old.startswith(prefix)
                ]
                for watch in gone:
                    del self._paths[watch]
                    self._inotify.remove(watch)
        self._moves.clear()

    def _change(self, event: FileEvent) -> None:
        """Join an event with the pending one of the same path."""
        key = os.fsencode(event.path)
        before = self._changes.pop(key, None)
        if before is not None and before.kind == CREATED:
            if event.kind == REMOVED:
                return  # it existed only in between
            if event.kind == MODIFIED:
                event = before
        elif before is not None and before.kind == MOVED and event.kind == MODIFIED:
            event = before
        elif before is not None and before.kind == MOVED and event.kind == REMOVED:
            event = FileEvent(REMOVED, before.source or event.path, event.is_dir)
            key = os.fsencode(event.path)
        elif before is not None and before.kind == REMOVED and event.kind == CREATED:
            event = FileEvent(MODIFIED, event.path, event.is_dir)
        if len(self._changes) >= MAX_PENDING:
            self._lost = True
            return
        self._changes[key] = event

    def _finish(self, reason: str) -> None:
        self._end = self._end or reason

    def _schedule(self) -> None:
        if self._timer is None and self._open and not self._paused:
            self._timer = self._loop.call_later(JOIN_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._left()
        while self._changes and not self._paused:
            self._send(self._changes.pop(next(iter(self._changes))))
        if self._paused:
            return
        if self._lost:
            self._lost = False
            self._send(FileEvent(OVERFLOW))
        if self._end:
            self._send(FileEvent(END, reason=self._end))
            self.close()


def _checked(path: bytes) -> int:
    """Return the device of a directory that can be watched. Raises Refused."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise Refused(MISSING, f"{_shown(path)}: no such directory") from None
    except OSError as error:
        raise Refused(BAD, f"{_shown(path)}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(BAD, f"{_shown(path)} is not a directory")
    if file_system(status.st_dev).startswith(_FUSE):
        raise Refused(
            CONFLICT,
            f"{_shown(path)} is on the drive or another FUSE file system, which does not report"
            " changes made elsewhere; list it repeatedly, or watch a directory of the box itself",
        )
    return status.st_dev


def file_system(device: int, mounts: str = "/proc/self/mountinfo") -> bytes:
    """Return the type of the file system of a device; empty if it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    try:
        with open(mounts, "rb") as file:
            for line in file:
                fields = line.split(b" ")
                if fields[2] == number:
                    return fields[fields.index(b"-") + 1]
    except (OSError, IndexError, ValueError):
        return b""
    return b""


def _is_directory(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _fits(path: bytes) -> bool:
    return len(path) < MAX_PATH


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _shown(path: bytes) -> str:
    text = path.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text[:200])
