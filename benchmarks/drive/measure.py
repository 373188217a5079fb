"""Compares the drive with other file systems: the same works on the same stores, interleaved.

`python -m benchmarks.drive.measure [--quick] [--repeat N] [--work NAME] [--peer NAME]
[--no-parallel] [--growth] [--out DIR]` writes `drive.json`, `drive.md` and `drive.svg` into
`benchmarks/results`. The JSON is `{"works": {NAME: {"ours", "juicefs", "passthrough", "ratio",
"limit_ratio", ...}}}`. Figures are medians of rates. `ratio` is ours / JuiceFS, `limit_ratio` is
ours / passthrough; higher ratios are better. `goal` and `limit_goal` are the goals of both, and
`verdict` is "met", "short" or "unknown". Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drive import growth
from benchmarks.drive.chart import draw
from benchmarks.drive.goals import CLIENTS
from benchmarks.drive.ping_pong import ping_pong
from benchmarks.drive.ratios import THEM, US, compare, compare_parallel, judge_hand_off
from benchmarks.drive.report import lines
from benchmarks.peers.choose import BUCKETS, FULL_SIZE, NAMES, Peers
from benchmarks.report import RESULTS, directory_of, machine, revision, write
from benchmarks.stores import stores
from wrkfs.bench.material import CACHE, prepare
from wrkfs.bench.measure import Plan, measure
from wrkfs.bench.place import FULL, QUICK
from wrkfs.bench.workloads import ALL, BY_NAME

if TYPE_CHECKING:
    from wrkfs.bench.place import Size

REPEAT, QUICK_REPEAT = 5, 2
ROUNDS, QUICK_ROUNDS = 1000, 40
"""Rounds of the ping-pong."""
LIMIT, QUICK_LIMIT = 1800.0, 40.0
"""Time limit of a step of a work, in seconds."""


def main() -> None:
    """Measure and report."""
    arguments = _arguments()
    found: dict[str, Any] = {"machine": machine(), **revision(), "quick": arguments.quick}
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        directory = Path(name)
        with stores(directory / "stores") as where:
            with Peers(where, directory) as peers:
                found |= run(peers, arguments)
            if arguments.growth:
                (directory / "growth").mkdir()
                cases = growth.run(where, directory / "growth", quick=arguments.quick)
                found["growth"] = cases
    out = directory_of(arguments.out, quick=arguments.quick)
    write(out, "drive", lines(found), found, draw(found["works"]))
    _tell(f"results: {out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive.measure")
    add = parser.add_argument
    add("--quick", action="store_true", help=f"small works, {QUICK_REPEAT} repetitions")
    add("--repeat", type=int, help=f"repetitions (default: {REPEAT})")
    add("--work", action="append", choices=sorted(BY_NAME), help="measure only this work (repeat)")
    add("--peer", action="append", choices=NAMES, help="compare only with this peer (repeat)")
    add("--no-parallel", action="store_true", help=f"skip the works of {CLIENTS} clients")
    add("--growth", action="store_true", help="also run `python -m benchmarks.drive.growth`")
    add(
        "--out", type=Path, default=RESULTS, help="directory of the results (quick runs: a new one)"
    )
    return parser.parse_args()


def run(peers: Peers, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all parts except growth."""
    quick = arguments.quick
    size, repeat = (QUICK, QUICK_REPEAT) if quick else (FULL, REPEAT)
    repeat = arguments.repeat or repeat
    workloads = tuple(work for work in ALL if not arguments.work or work.name in arguments.work)
    wanted = set(arguments.peer or NAMES) | {US}
    cache = CACHE.expanduser()
    limit = QUICK_LIMIT if quick else LIMIT
    one = Plan(size, prepare(cache, size, workloads), repeat, workloads, limit=limit)
    whole = peers.mounted([name for name in FULL_SIZE if name in wanted])
    found = measure(whole, one, _tell)
    buckets = peers.mounted([name for name in BUCKETS if name in wanted])
    # Bucket file systems do a smaller part. Works that they skip have no figures.
    small = replace(one, size=_part(one), repeat=1 if quick else repeat, label="bucket")
    if buckets:
        for work, series in measure(buckets, small, _tell).items():
            found[work] |= series
    result: dict[str, Any] = {
        "repeat": repeat,
        "size": asdict(size),
        "works": compare(found),
    }
    if not arguments.no_parallel:
        each = size.shared_by(CLIENTS)
        plan = replace(one, size=each, material=prepare(cache, each, workloads), clients=CLIENTS)
        plan = replace(plan, label="four", repeat=1 if quick else repeat)
        pair = [peer for peer in whole if peer.name in {US, THEM}]
        result["parallel"] = {
            "clients": CLIENTS,
            "repeat": plan.repeat,
            "works": compare_parallel(measure(pair, plan, _tell), result["works"]),
        }
    result["ping_pong"] = {
        peer.name: _ping_pong(peers, peer.name, peer.path, QUICK_ROUNDS if quick else ROUNDS)
        for peer in whole
        if peer.name in {US, THEM}
    }
    if US in result["ping_pong"]:
        result["ping_pong"][US] = judge_hand_off(result["ping_pong"][US])
    if (program := peers.juicefs) is not None:
        about = {"version": program.version, "source": program.source, "note": program.note}
        result["juicefs"] = about
    result["peers"] = [peer.name for peer in [*whole, *buckets]]
    result["missing"] = peers.missing
    return result


def _part(plan: Plan) -> Size:
    return replace(plan.size, files=min(plan.size.files, 100), entries=100, mib=plan.size.mib // 4)


def _ping_pong(peers: Peers, name: str, path: Path, rounds: int) -> dict[str, Any]:
    other = peers.second(name)
    if other is None:
        return {"fails": peers.missing[f"{name}-second"]}
    try:
        return ping_pong(path, other.path, rounds)
    except OSError as error:
        return {"fails": str(error)}
    finally:
        other.unmount()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
