"""Compares operations in large and small drives: `python -m benchmarks.drive.growth`.

The large cases are: many files in a volume, many entries in one directory, many volumes in the
database, and many mounts of one volume. Writes `growth.json` and `growth.md` into
`benchmarks/results`. A cost of 1.2 means that an operation takes 1.2 times as long in the large
case.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drive.goals import GROWTH
from benchmarks.drive.ratios import judge_growth
from benchmarks.peers.ours import Ours
from benchmarks.report import RESULTS, directory_of, machine, markdown, revision, write
from benchmarks.stores import stores
from wrkfs.bench.figures import summary, table
from wrkfs.bench.measure import Plan, measure
from wrkfs.bench.place import LISTED, Material
from wrkfs.bench.place import QUICK as QUICK_SIZE
from wrkfs.bench.workloads import BY_NAME
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.stores import Stores
    from wrkfs.bench.measure import Measurements
    from wrkfs.config import VolumeConfig

WORKS = (
    "create",
    "create_write_4k",
    "stat_cold",
    "open_read_4k_cold",
    "readdir_1000",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
)
SMALL, LARGE = "small", "large"
FOLDER = 1000
"""Files in each directory of the volume with many files."""
FILLERS = 32
"""Parallel creates during the preparation of a case, which is not measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of the cases."""

    few: int
    """Files and entries of the small case."""
    files: int
    entries: int
    volumes: int
    mounts: int
    operations: int
    repeat: int


FULL = Scale(1000, 1_000_000, 100_000, 100, 10, operations=200, repeat=5)
QUICK = Scale(100, 2000, 1000, 4, 3, operations=20, repeat=1)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive.growth")
    parser.add_argument("--quick", action="store_true", help="much smaller cases")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), **revision(), "quick": arguments.quick}
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        directory = Path(name)
        with stores(directory / "stores") as where:
            found["growth"] = run(where, directory, quick=arguments.quick)
    out = directory_of(arguments.out, quick=arguments.quick)
    write(out, "growth", lines(found["growth"]), found)


def run(where: Stores, directory: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures by case: the rates of both sizes, and the cost of the large one."""
    scale = QUICK if quick else FULL
    cases = {
        f"{scale.files:,} files in a volume": many_files,
        f"{scale.entries:,} entries in one directory": many_entries,
        f"{scale.mounts} mounts of one volume": many_mounts,
        f"{scale.volumes} volumes": many_volumes,
    }
    found = {}
    for number, (name, case) in enumerate(cases.items()):
        _tell(name)
        here = directory / f"case{number}"
        here.mkdir()
        with ExitStack() as stack:
            series = case(where, here, scale, stack)
        found[name] = judge_growth(summary(series, SMALL, LARGE))
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    text = ["# Growth", "", f"Cost of an operation in the large case. Goal: at most {GROWTH:g}."]
    for name, works in found.items():
        as_ratio = {work: figures | {"ratio": figures["cost"]} for work, figures in works.items()}
        rows = table(as_ratio, [SMALL, LARGE], ratio=True)
        head = ["cost" if cell == "ratio" else cell for cell in rows[0]]
        verdicts = [figures["verdict"] for figures in works.values()]
        rows = [
            (*row, cell) for row, cell in zip([head, *rows[1:]], ["goals", *verdicts], strict=True)
        ]
        text += ["", f"## {name}", "", *markdown(rows, left=2)]
    return text


class Part:
    """A directory of a mount as a target of works."""

    skips: frozenset[str] = frozenset()

    def __init__(self, mount: Ours, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._mount = mount

    def check(self) -> None:
        """Raise WorkloadFailed if the mount does not work."""
        self._mount.check()

    def drop_caches(self) -> None:
        """Drop all caches."""
        self._mount.drop_caches()


def many_files(where: Stores, directory: Path, scale: Scale, stack: ExitStack) -> Measurements:
    """Compare a volume with few files and one with many, in directories of equal size."""
    targets = []
    for name, files in ((SMALL, scale.few), (LARGE, scale.files)):
        volume = where.volume()
        where.run(fill(volume, b"files", files, FOLDER))
        mount = _mounted(stack, volume, directory, name)
        targets.append(Part(mount, name, mount.path))
    return measure(targets, _plan(scale), _tell)


def many_entries(where: Stores, directory: Path, scale: Scale, stack: ExitStack) -> Measurements:
    """Compare a small and a large directory of one volume. The works run among the entries."""
    volume = where.volume()
    for name, entries in ((SMALL, scale.few), (LARGE, scale.entries)):
        where.run(fill(volume, name.encode(), entries, entries, LISTED))
    mount = _mounted(stack, volume, directory, "entries")
    targets = [Part(mount, name, mount.path / name) for name in (SMALL, LARGE)]
    return measure(targets, replace(_plan(scale), inside=True), _tell)


def many_mounts(where: Stores, directory: Path, scale: Scale, stack: ExitStack) -> Measurements:
    """Compare a single mount with several that have read and written the same tree."""
    volume = where.volume()
    mount = _mounted(stack, volume, directory, "mount0")
    others = [Ours(volume, directory, f"mount{number}") for number in range(1, scale.mounts)]
    rounds = []
    for turn in range(scale.repeat):
        plan = replace(_plan(scale), repeat=1, label=f"alone{turn}")
        rounds.append(measure([Part(mount, SMALL, mount.path)], plan, _tell))
        with ExitStack() as crowd:
            for number, other in enumerate(others):
                crowd.callback(other.unmount)
                other.mount()
                (other.path / f"of{number}-{turn}").touch()
                for _ in os.walk(other.path):
                    pass
            plan = replace(plan, label=f"among{turn}")
            rounds.append(measure([Part(mount, LARGE, mount.path)], plan, _tell))
    return _together(rounds)


def many_volumes(where: Stores, directory: Path, scale: Scale, stack: ExitStack) -> Measurements:
    """Compare a volume before and after the creation of many others, each with some files."""
    mount = _mounted(stack, where.volume(), directory, "volume")
    before = replace(_plan(scale), label="before")
    rounds = [measure([Part(mount, SMALL, mount.path)], before, _tell)]
    for _ in range(scale.volumes - 1):
        where.run(fill(where.volume(), b"files", scale.few // 10, FOLDER))
    after = replace(before, label="after")
    rounds.append(measure([Part(mount, LARGE, mount.path)], after, _tell))
    return _together(rounds)


async def fill(volume: VolumeConfig, name: bytes, files: int, folder: int, inner: str = "") -> None:
    """Create empty files below `name`, `folder` files per directory.

    `inner` is the name of the directory if there is only one.
    """
    who = Caller(0, 0)
    fs = await Filesystem.connect(volume, kind="bench")
    try:
        top = (await fs.mkdir(ROOT_INO, name, 0o755, who)).ino

        async def make(numbers: Iterator[int]) -> None:
            for number in numbers:
                parent = parents[number // folder]
                entry = b"entry%d" % (number % folder)
                await fs.mknod(parent, entry, stat.S_IFREG | 0o644, 0, who)

        parents = []
        for number in range(-(-files // folder)):
            called = inner.encode() or b"folder%d" % number
            parents.append((await fs.mkdir(top, called, 0o755, who)).ino)
        numbers = iter(range(files))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(FILLERS):
                tasks.create_task(make(numbers))
    finally:
        await fs.close()


def _mounted(stack: ExitStack, volume: VolumeConfig, directory: Path, name: str) -> Ours:
    mount = Ours(volume, directory, name)
    stack.callback(mount.unmount)
    mount.mount()
    return mount


def _plan(scale: Scale) -> Plan:
    size = replace(QUICK_SIZE, files=scale.operations, entries=scale.few)
    workloads = tuple(BY_NAME[name] for name in WORKS)
    return Plan(size, Material("", "", 0, 0, (), 0), scale.repeat, workloads, label="growth")


def _together(rounds: list[Measurements]) -> Measurements:
    """Merge the series of several measurements."""
    found: Measurements = {}
    for one in rounds:
        for work, by_target in one.items():
            for target, series in by_target.items():
                mine = found.setdefault(work, {}).setdefault(target, type(series)())
                mine.rates += series.rates
                mine.errors += series.errors
    return found


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
