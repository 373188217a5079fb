"""Random work on one file, on the drive and on the local disk alike: the same bytes, always.

What fsx does, and more: writes, appends, reads, mappings, truncation to make holes, reopening,
direct I/O, dropped caches; on one mount, and on two that hand over to each other.
"""

from __future__ import annotations

import mmap
import os
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.figures import Figures

PAGE = mmap.PAGESIZE
STEPS = 60
EDGES = (0, PAGE, 64 << 10, 128 << 10, 1 << 20)
"""Where pages, inline slices, checksum units and requests of the kernel end."""
FAR_EDGES = (4 << 20, 64 << 20)
"""Where blocks and chunks end."""


class Twin:
    """The same file in two places. Each step does the same in both and compares the outcome."""

    def __init__(self, places: list[Path], local: Path, chance: random.Random) -> None:
        """`places` are the same file of the drive on its mounts; `local` is the model."""
        self._chance = chance
        self._paths = places
        self._local_path = local
        self._direct = mmap.mmap(-1, 64 * PAGE)
        self._counter = 0
        self._edges = EDGES if chance.random() < 0.7 else EDGES + FAR_EDGES
        self._turn = 0
        self.log: list[str] = []
        local.write_bytes(b"")
        places[0].write_bytes(b"")
        self._local = os.open(local, os.O_RDWR)
        self._opened = [self._open(place) for place in places]

    def _open(self, place: Path) -> tuple[int, int, int]:
        """Descriptors of a place: plain, appending, direct."""
        return (
            os.open(place, os.O_RDWR),
            os.open(place, os.O_RDWR | os.O_APPEND),
            os.open(place, os.O_RDWR | os.O_DIRECT),
        )

    def close(self) -> None:
        """Ends all descriptors; their errors are errors."""
        for descriptors in self._opened:
            for descriptor in descriptors:
                os.close(descriptor)
        os.close(self._local)
        self._direct.close()

    def step(self) -> None:
        """One random step."""
        verbs = ["write"] * 4 + ["read"] * 4 + ["append", "truncate", "punch", "map_read"]
        verbs += ["map_write"] * 3 + ["reopen", "fsync", "drop", "stat", "hand_over"]
        verbs += ["direct_write", "direct_read", "vector"]
        verb = self._chance.choice(verbs)
        self.log.append(f"{self._turn} {verb}")
        getattr(self, f"_{verb}")()

    def compare(self) -> None:
        """All bytes and the size are alike, through every mount."""
        size = os.fstat(self._local).st_size
        self._fsync()
        for path in self._paths:
            assert path.stat().st_size == size, self.log
            with path.open("rb") as drive, self._local_path.open("rb") as local:
                at = 0
                while wanted := local.read(1 << 20):
                    found = drive.read(1 << 20)
                    self._alike(found, wanted, at)
                    at += len(wanted)

    # -- steps --

    def _write(self) -> None:
        at, data = self._place(), self._data()
        self._note(at, len(data))
        assert os.pwrite(self._fd, data, at) == os.pwrite(self._local, data, at)

    def _vector(self) -> None:
        at, pieces = self._place(), [self._data()[:5000] for _ in range(3)]
        self._note(at, sum(map(len, pieces)))
        assert os.pwritev(self._fd, pieces, at) == os.pwritev(self._local, pieces, at)

    def _append(self) -> None:
        data = self._data()
        self._note(os.fstat(self._local).st_size, len(data))
        assert os.write(self._opened[self._turn][1], data) == len(data)
        os.pwrite(self._local, data, os.fstat(self._local).st_size)

    def _read(self) -> None:
        at, size = self._place(), self._size()
        self._note(at, size)
        self._alike(os.pread(self._fd, size, at), os.pread(self._local, size, at), at)

    def _direct_write(self) -> None:
        at = self._place() // PAGE * PAGE
        size = self._chance.randrange(1, 64) * PAGE
        self._direct[:size] = self._pattern(size)
        self._note(at, size)
        with memoryview(self._direct)[:size] as view:
            assert os.pwritev(self._opened[self._turn][2], [view], at) == size
            os.pwritev(self._local, [view], at)

    def _direct_read(self) -> None:
        at = self._place() // PAGE * PAGE
        self._note(at, 8 * PAGE)
        with memoryview(self._direct)[: 8 * PAGE] as view:
            size = os.preadv(self._opened[self._turn][2], [view], at)
        self._alike(self._direct[:size], os.pread(self._local, 8 * PAGE, at), at)

    def _truncate(self) -> None:
        size = self._place()
        self._note(size, 0)
        for descriptor in (self._fd, self._local):
            os.ftruncate(descriptor, size)

    def _punch(self) -> None:
        """A hole at the end: down and up again."""
        size = os.fstat(self._local).st_size
        cut = self._chance.randrange(size + 1)
        self._note(cut, size - cut)
        for descriptor in (self._fd, self._local):
            os.ftruncate(descriptor, cut)
            os.ftruncate(descriptor, size)

    def _map_read(self) -> None:
        if (part := self._mappable()) is not None:
            at, end = part
            with mmap.mmap(self._fd, end, prot=mmap.PROT_READ) as mapped:
                self._alike(mapped[at:end], os.pread(self._local, end - at, at), at)

    def _map_write(self) -> None:
        if (part := self._mappable()) is not None:
            at, end = part
            data = self._pattern(end - at)
            with mmap.mmap(self._fd, end) as mapped:
                mapped[at:end] = data
                if self._chance.random() < 0.5:
                    mapped.flush()
            os.pwrite(self._local, data, at)

    def _reopen(self) -> None:
        self._fsync()
        for descriptor in self._opened[self._turn]:
            os.close(descriptor)
        self._opened[self._turn] = self._open(self._paths[self._turn])

    def _fsync(self) -> None:
        os.fsync(self._fd)

    def _drop(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _stat(self) -> None:
        assert os.fstat(self._fd).st_size == os.fstat(self._local).st_size, self.log

    def _hand_over(self) -> None:
        """The other mount goes on. It asks for the size first: mapped pages are not revalidated."""
        self._fsync()
        self._turn = (self._turn + 1) % len(self._opened)
        self._stat()

    # -- inside --

    @property
    def _fd(self) -> int:
        return self._opened[self._turn][0]

    def _place(self) -> int:
        edge = self._chance.choice(self._edges)
        return max(0, edge + self._chance.randrange(-2 * PAGE, 2 * PAGE))

    def _size(self) -> int:
        return self._chance.choice((1, 100, PAGE, 3 * PAGE + 1, 70_000, 140_000))

    def _data(self) -> bytes:
        return self._pattern(self._chance.randrange(1, self._size() + 1))

    def _pattern(self, size: int) -> bytes:
        """Bytes that tell which step wrote them and where."""
        self._counter += 1
        word = b"%06d:" % self._counter
        return (word * (size // len(word) + 1))[:size]

    def _mappable(self) -> tuple[int, int] | None:
        """A range within the file; None when the file is empty or too long to be mapped quickly."""
        size = os.fstat(self._local).st_size
        at = self._place()
        if at >= size:
            return None
        end = min(size, at + self._size())
        self._note(at, end - at)
        return at, end

    def _note(self, at: int, size: int) -> None:
        self.log[-1] += f" [{at}, {at + size})"

    def _alike(self, found: bytes, wanted: bytes, at: int) -> None:
        if found != wanted:
            pairs = zip(found, wanted, strict=False)
            first = next((n for n, (a, b) in enumerate(pairs) if a != b), len(found))
            steps = "\n".join(self.log)
            raise AssertionError(
                f"{len(found)} bytes for {len(wanted)}, first different at {at + first}: "
                f"{found[first : first + 20]!r} for {wanted[first : first + 20]!r}\n{steps}"
            )


def play(places: list[Path], local: Path, seed: int) -> None:
    """One round: the same random work in both places."""
    twin = Twin(places, local, random.Random(seed))
    try:
        for _ in range(STEPS):
            twin.step()
        twin.compare()
    finally:
        twin.close()
    places[0].unlink()


@pytest.mark.figure("PX-3")
@pytest.mark.timeout(180)
def test_one_mount(figures: Figures, mounted_twice: tuple[Path, Path], tmp_path: Path) -> None:
    for seed in figures(ci=60, long=5_000):
        play([mounted_twice[0] / f"one{seed}"], tmp_path / "local", seed)


@pytest.mark.figure("PX-3")
@pytest.mark.timeout(180)
def test_two_mounts(figures: Figures, mounted_twice: tuple[Path, Path], tmp_path: Path) -> None:
    for seed in figures(ci=40, long=5_000):
        places = [path / f"two{seed}" for path in mounted_twice]
        play(places, tmp_path / "local", 1_000_000 + seed)
