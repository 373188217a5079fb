"""The drive against JuiceFS: the same work, on the same stores, interleaved in one run.

`python -m benchmarks.drive [--quick] [--repeat N]` writes `benchmarks/results/drive.json`
(`{"works": {NAME: {"ours", "juicefs", "ratio", ...}}}`, medians of rates: a higher ratio is
better) and `drive.md`. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import statistics
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import JuiceFS, Ours
from benchmarks.report import machine, save
from benchmarks.stores import stores
from benchmarks.works import FULL, QUICK, WORKS, Run, clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Peer
    from benchmarks.works import Size


async def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive")
    parser.add_argument("--quick", action="store_true", help="less work and 2 repetitions")
    parser.add_argument("--repeat", type=int, help="repetitions (default 5)")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    repeat = arguments.repeat or (2 if arguments.quick else 5)
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        directory = Path(name)
        async with stores(directory / "stores") as where:
            peers: list[Peer] = [Ours(where, directory), JuiceFS(where, directory)]
            found = await asyncio.to_thread(measure, peers, size, repeat, directory)
    report(found, size, repeat)


def measure(
    peers: list[Peer], size: Size, repeat: int, directory: Path
) -> dict[str, dict[str, list[float]]]:
    """Rates by work and peer; A B, B A, A B ... so that a drift hits both alike."""
    archive = make_archive(directory / "tree.tar", size.files)
    found: dict[str, dict[str, list[float]]] = {
        work.__name__: {peer.name: [] for peer in peers} for work in WORKS
    }
    with contextlib.ExitStack() as stack:
        for peer in peers:
            peer.mount()
            stack.callback(peer.unmount)
        for turn in range(repeat):
            runs = [Run(peer, peer.path / f"turn{turn}", size, archive) for peer in peers]
            for run in runs:
                run.directory.mkdir()
            for number, work in enumerate(WORKS):
                for run in runs if (turn + number) % 2 == 0 else reversed(runs):
                    found[work.__name__][run.peer.name].append(attempt(work, run))
                print(f"{turn + 1}/{repeat} {work.__name__}", file=sys.stderr, flush=True)
            for run in runs:
                clean(run)
    return found


def attempt(work: Callable[[Run], float], run: Run) -> float:
    """The rate, or 0 when the peer answers with an error, which the table then says."""
    try:
        return work(run)
    except OSError as error:
        print(f"{run.peer.name} {work.__name__}: {error}", file=sys.stderr)
        return 0.0


def make_archive(path: Path, files: int) -> Path:
    """A tar of small files in folders of twenty, as source trees are."""
    with tarfile.open(path, "w") as tar:
        for number in range(files):
            data = b"%d\n" % number * (20 + number % 400)
            member = tarfile.TarInfo(f"tree/folder{number // 20}/file{number}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def report(found: dict[str, dict[str, list[float]]], size: Size, repeat: int) -> None:
    """Prints the table and writes both files."""
    works: dict[str, dict[str, float | None]] = {}
    rows: list[tuple[str, ...]] = [("work", "ours", "JuiceFS", "ratio", "spread of the ratio")]
    for name, rates in found.items():
        ours, theirs = (statistics.median(rates[peer]) for peer in ("ours", "juicefs"))
        if 0.0 in (*rates["ours"], *rates["juicefs"]):
            works[name] = {"ours": ours or None, "juicefs": theirs or None, "ratio": None}
            cells = (f"{figure:,.0f}" if figure else "fails" for figure in (ours, theirs))
            rows.append((name, *cells, "-", "-"))
            continue
        ratios = [a / b for a, b in zip(rates["ours"], rates["juicefs"], strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        works[name] = {
            "ours": ours,
            "juicefs": theirs,
            "ratio": middle,
            "ratio_min": low,
            "ratio_max": high,
        }
        spread = f"{low:.2f} - {high:.2f}"
        rows.append((name, f"{ours:,.0f}", f"{theirs:,.0f}", f"{middle:.2f}", spread))
    unit = f"operations (sequential: MiB) a second; {size.files} files, {size.mib} MiB"
    title = f"Drive and JuiceFS 0.14.2 on the same stores: medians of {repeat}, {unit}"
    save("drive", title, rows, {"machine": machine(), "repeat": repeat, "works": works})


if __name__ == "__main__":
    asyncio.run(main())
