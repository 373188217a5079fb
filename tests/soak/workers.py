"""Clients of the soak: each does random things in a directory of its own and knows what it did."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wrkfs.errors import Exists, WrkfsError
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from wrkfs.config import VolumeConfig
    from wrkfs.types import Ino

ROOT = Caller(0, 0)
SIZES = (0, 1, 4096, 65_536, 65_537, 300_000, 3_000_000)
SHARED = "shared"


def noise(seed: int, size: int) -> bytes:
    """Bytes that one seed always gives."""
    return random.Random(seed).randbytes(size)


@dataclass
class Worker:
    """Works through one mount, and reads what it wrote through another one."""

    name: str
    here: Path
    there: Path
    seed: int
    known: dict[str, bytes] = field(default_factory=dict)
    """Path below the own directory -> SHA-256 of what stands there."""

    def work(self, steps: int) -> None:
        """So many random steps; AssertionError when something is not as it was left."""
        rng = random.Random(self.seed)
        base = self.here / self.name
        base.mkdir(exist_ok=True)
        (self.here / SHARED).mkdir(exist_ok=True)
        verbs: list[Callable[[random.Random, Path], None]] = [
            self._write,
            self._write,
            self._append,
            self._truncate,
            self._rename,
            self._remove,
            self._read,
            self._read,
            self._tree,
            self._shared,
            self._held,
        ]
        for _ in range(steps):
            rng.choice(verbs)(rng, base)
        for name in self.known:
            self._check(name)

    def _write(self, rng: random.Random, base: Path) -> None:
        name = f"f{rng.randrange(12)}"
        data = noise(rng.randrange(1 << 30), rng.choice(SIZES))
        (base / name).write_bytes(data)
        self.known[name] = hashlib.sha256(data).digest()

    def _append(self, rng: random.Random, base: Path) -> None:
        name = self._any(rng)
        if name is not None:
            old = (base / name).read_bytes()
            added = noise(rng.randrange(1 << 30), rng.choice((1, 5000, 100_000)))
            with (base / name).open("ab") as file:
                file.write(added)
                os.fsync(file.fileno())
            self.known[name] = hashlib.sha256(old + added).digest()

    def _truncate(self, rng: random.Random, base: Path) -> None:
        name = self._any(rng)
        if name is not None:
            old = (base / name).read_bytes()
            size = rng.choice((0, len(old) // 2, len(old) + 70_000))
            os.truncate(base / name, size)
            self.known[name] = hashlib.sha256(old[:size].ljust(size, b"\0")).digest()

    def _rename(self, rng: random.Random, base: Path) -> None:
        name = self._any(rng)
        target = f"f{rng.randrange(12)}"
        if name is not None and name != target:
            (base / name).rename(base / target)
            self.known[target] = self.known.pop(name)

    def _remove(self, rng: random.Random, base: Path) -> None:
        name = self._any(rng)
        if name is not None:
            (base / name).unlink()
            del self.known[name]
            assert not (self.there / self.name / name).exists()

    def _read(self, rng: random.Random, _base: Path) -> None:
        name = self._any(rng)
        if name is not None:
            self._check(name)

    def _tree(self, rng: random.Random, base: Path) -> None:
        """A tree comes and goes; links, a symbolic link and an attribute with it."""
        top = base / f"tree{rng.randrange(1 << 30)}"
        (top / "a/b").mkdir(parents=True)
        (top / "a/b/file").write_bytes(noise(1, rng.choice(SIZES)))
        os.link(top / "a/b/file", top / "link")
        (top / "symlink").symlink_to("a/b/file")
        os.setxattr(top / "a", "user.soak", b"x" * 100)
        shutil.rmtree(top)

    def _shared(self, rng: random.Random, _base: Path) -> None:
        """All workers replace the same few names."""
        mine = self.here / SHARED / f".{self.name}"
        mine.write_bytes(noise(rng.randrange(1 << 30), rng.choice(SIZES)))
        mine.replace(self.here / SHARED / f"s{rng.randrange(4)}")

    def _held(self, rng: random.Random, base: Path) -> None:
        """A file that is removed while it is open keeps its bytes (V5)."""
        data = noise(rng.randrange(1 << 30), rng.choice(SIZES[1:]))
        path = base / "held"
        path.write_bytes(data)
        with path.open("rb") as file:
            (self.there / self.name / "held").unlink()
            assert file.read() == data

    def _any(self, rng: random.Random) -> str | None:
        return rng.choice(sorted(self.known)) if self.known else None

    def _check(self, name: str) -> None:
        data = (self.there / self.name / name).read_bytes()
        assert hashlib.sha256(data).digest() == self.known[name], f"{self.name}/{name}"


async def serve(volume: VolumeConfig, seed: int, stop: threading.Event) -> int:
    """What HTTP does: files replaced whole, snapshots read; the number of steps made."""
    rng = random.Random(seed)
    fs = await Filesystem.connect(volume, kind="http")
    steps = 0
    try:
        directory = await _directory(fs, SHARED.encode())
        while not stop.is_set():
            await _step(fs, rng, directory)
            steps += 1
            await asyncio.sleep(0)
    finally:
        await fs.close()
    return steps


async def _directory(fs: Filesystem, name: bytes) -> Ino:
    # The workers make it, too.
    with contextlib.suppress(Exists):
        return (await fs.mkdir(ROOT_INO, name, 0o755, ROOT)).ino
    return (await fs.lookup(ROOT_INO, name)).ino


async def _step(fs: Filesystem, rng: random.Random, directory: Ino) -> None:
    name = b"s%d" % rng.randrange(4)
    if rng.random() < 0.5:
        handle = await fs.create_unlinked(0o644, ROOT)
        try:
            await handle.write(0, noise(rng.randrange(1 << 30), rng.choice(SIZES)))
            if rng.random() < 0.9:  # else the client went away in the middle
                await fs.publish(handle.ino, directory, name)
        finally:
            await handle.close()
        return
    try:
        attr = await fs.lookup(directory, name)
        snapshot = await fs.open_snapshot(attr.ino)
    except WrkfsError:
        return  # not there yet, or just replaced
    try:
        assert len(await snapshot.read(0, snapshot.attr.size + 1)) == snapshot.attr.size
    finally:
        await snapshot.close()
