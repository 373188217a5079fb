"""Writers on a mount that a test kills; each writer has its own ledger."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

from tests.harness.mounts.ledger import Ledger, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV}
"""Errors of a writer's calls after the death of its mount."""
FILES_MAX = 8
SIZE_MAX = 400_000


class Writer:
    """Makes random calls in one directory, one at a time, and records each in the ledger.

    `closing` is set right before a call that makes bytes durable, so that a killer can hit it.
    """

    def __init__(self, root: Path, name: str, seed: int) -> None:
        self.directory = root / name
        self.ledger = Ledger()
        self.closing = threading.Event()
        self.stop = threading.Event()
        self.calls: Counter[str] = Counter()
        self.trouble: list[str] = []
        self._random = random.Random(seed)
        self._open: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._number = 0

    def start(self) -> None:
        """Work in a thread until `stop` is set or the mount has died."""
        self.stop.clear()
        self.closing.clear()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, and close its files on the dead mount."""
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive(), "a call hangs on a dead mount"
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()

    def verify(self) -> list[str]:
        """Return the differences that `Ledger.verify` finds."""
        return self.trouble + self.ledger.verify(self.directory)

    def _work(self) -> None:
        verbs: list[Callable[[], None]] = [
            self._create,
            self._write,
            self._write,
            self._append,
            self._truncate,
            self._rename,
            self._unlink,
            self._link,
            self._fsync,
            self._close,
        ]
        try:
            while not self.stop.is_set():
                verb = self._random.choice(verbs)
                verb()
                self.calls[verb.__name__.strip("_")] += 1
        except OSError as error:
            if error.errno not in GONE:
                self.trouble.append(f"{self.directory.name}: {error!r}")

    # -- one call each --

    def _some(self) -> str:
        if not self.ledger.files:
            self._create()
        return self._random.choice(sorted(self.ledger.files))

    def _fresh_name(self) -> str:
        self._number += 1
        return f"f{self._number}"

    def _data(self) -> bytes:
        self._number += 1
        size = self._random.choice((1, 100, 4096, 70_000, 200_000))
        return (b"%08d" % self._number * (size // 8 + 1))[:size]

    def _descriptor(self, name: str) -> int:
        """Return an open descriptor of the file; opening changes no content."""
        if name not in self._open:
            self._open[name] = os.open(self.directory / name, os.O_RDWR)
        return self._open[name]

    def _create(self) -> None:
        if len(self.ledger.files) >= FILES_MAX:
            self._unlink()
        name = self._fresh_name()
        with self.ledger.naming({**self.ledger.files, name: Record([b""])}):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            self._open[name] = os.open(self.directory / name, flags, 0o644)

    def _write(self) -> None:
        name, data = self._some(), self._data()
        record = self.ledger.files[name]
        at = self._random.randrange(min(len(record.latest) + 2, SIZE_MAX))
        descriptor = self._descriptor(name)
        old = record.latest
        record.becomes(old[:at].ljust(at, b"\0") + data + old[at + len(data) :])
        self._check_whole(os.pwrite(descriptor, data, at), data)

    def _append(self) -> None:
        name, data = self._some(), self._data()
        record = self.ledger.files[name]
        if len(record.latest) > SIZE_MAX:
            return
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_APPEND)
        try:
            record.becomes(record.latest + data)
            self._check_whole(os.write(descriptor, data), data)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        self._finish(record, lambda: os.close(descriptor))

    def _check_whole(self, written: int, data: bytes) -> None:
        """Allow a short write only if the mount ended in it: then the next call fails."""
        if written != len(data):
            os.statvfs(self.directory)  # The kernel always asks the mount.
            self.trouble.append(f"{self.directory.name}: {written} of {len(data)} bytes written")

    def _truncate(self) -> None:
        name = self._some()
        record = self.ledger.files[name]
        size = self._random.randrange(min(2 * len(record.latest) + 2, SIZE_MAX))
        record.becomes(record.latest[:size].ljust(size, b"\0"))
        mark = record.mark()
        # All clients see the size from now on, so a crash of the mount cannot lose it.
        os.truncate(self.directory / name, size)
        record.safe(mark)

    def _rename(self) -> None:
        old = self._some()
        over = self._random.random() < 0.5
        new = self._some() if over else self._fresh_name()
        files = dict(self.ledger.files)
        if new in files and files[new] is files[old]:
            return
        files[new] = files.pop(old)
        with self.ledger.naming(files):
            os.rename(self.directory / old, self.directory / new)
        self._forget(new)
        if old in self._open:
            self._open[new] = self._open.pop(old)

    def _unlink(self) -> None:
        name = self._some()
        files = {known: record for known, record in self.ledger.files.items() if known != name}
        with self.ledger.naming(files):
            os.unlink(self.directory / name)
        self._forget(name)

    def _link(self) -> None:
        if len(self.ledger.files) >= FILES_MAX:
            return
        old, new = self._some(), self._fresh_name()
        with self.ledger.naming({**self.ledger.files, new: self.ledger.files[old]}):
            os.link(self.directory / old, self.directory / new)

    def _fsync(self) -> None:
        name = self._some()
        descriptor = self._descriptor(name)
        call = self._random.choice((os.fsync, os.fdatasync))
        self._finish(self.ledger.files[name], lambda: call(descriptor))

    def _close(self) -> None:
        if self._open:
            name = self._random.choice(sorted(self._open))
            descriptor = self._open.pop(name)
            self._finish(self.ledger.files[name], lambda: os.close(descriptor))

    def _finish(self, record: Record, call: Callable[[], None]) -> None:
        """Make a call that makes earlier writes durable."""
        mark = record.mark()
        self.closing.set()
        call()
        record.safe(mark)

    def _forget(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))
