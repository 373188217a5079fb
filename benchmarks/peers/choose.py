"""Creates the measured file systems, each with its own stores on the same servers."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from benchmarks.peers.buckets import Rclone, S3fs
from benchmarks.peers.juicefs import JuiceFS, Volume, find_program, format_volume
from benchmarks.peers.limits import Disk, Passthrough
from benchmarks.peers.mounted import NotHere
from benchmarks.peers.ours import Ours
from wrkfs.bench.place import WorkloadFailed
from wrkfs.bench.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.peers.juicefs import Program
    from benchmarks.stores import Stores

FULL_SIZE = ("ours", "juicefs", "passthrough", "disk")
"""Peers that do all works in full size."""
BUCKETS = ("s3fs", "rclone")
"""Peers that do smaller works, because each file needs several requests."""
NAMES = FULL_SIZE + BUCKETS


class Peer(Target, Protocol):
    """A target that can be mounted and unmounted."""

    def mount(self) -> None:
        """Mount it. Raises WorkFailed."""
        ...

    def unmount(self) -> None:
        """Unmount it, also after a failure, and leave nothing behind."""
        ...


class Peers:
    """Mounts peers one by one, and unmounts all at the end of the context."""

    def __init__(self, stores: Stores, directory: Path) -> None:
        self._stores = stores
        self._directory = directory
        self._stack = ExitStack()
        self._volume = stores.volume()
        self._juicefs: Volume | None = None
        self.missing: dict[str, str] = {}
        """Unavailable peers, with the reasons."""

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def juicefs(self) -> Program | None:
        """The program of JuiceFS, if its volume exists."""
        return None if self._juicefs is None else self._juicefs.program

    def mounted(self, names: Sequence[str]) -> list[Peer]:
        """Mount peers; return those that are available."""
        found = []
        for name in names:
            peer = self._attempt(name, partial(self._make, name))
            if peer is not None:
                found.append(peer)
        return found

    def second(self, name: str) -> Peer | None:
        """Return another mount of the same volume, for our drive or JuiceFS."""
        return self._attempt(f"{name}-second", lambda: self._make(name, f"{name}-second"))

    def _attempt(self, name: str, make: Callable[[], Peer]) -> Peer | None:
        try:
            peer = make()
            self._stack.callback(peer.unmount)
            peer.mount()
        except (NotHere, WorkloadFailed, OSError) as error:
            self.missing[name] = str(error)
            return None
        return peer

    def _make(self, name: str, called: str = "") -> Peer:
        directory = self._directory
        if name == "ours":
            return Ours(self._volume, directory, called or name)
        if name == "juicefs":
            if self._juicefs is None:
                self._juicefs = self._format()
            return JuiceFS(self._juicefs, directory, called or name)
        if name == "passthrough":
            return Passthrough(directory)
        if name == "disk":
            return Disk(directory)
        if name == "s3fs":
            return S3fs(self._stores.whole_bucket(), directory)
        return Rclone(self._stores.credential(), directory)

    def _format(self) -> Volume:
        program = find_program()
        database = self._stores.database("juicefs", program.statements)
        volume = Volume(program, program.address(database), self._stores.credential())
        format_volume(program, volume.meta, volume.store)
        return volume
