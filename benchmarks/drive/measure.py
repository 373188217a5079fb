"""Compares the drive with other file systems: the same works on the same stores, interleaved.

`python -m benchmarks.drive.measure [--quick] [--repeat N] [--work NAME] [--peer NAME]
[--no-parallel] [--growth] [--out DIR]` writes `drive.json`, `drive.md` and `drive.svg` into
`benchmarks/results`. The JSON is `{"works": {NAME: {"ours", "juicefs", "ratio", ...}}}`. Figures
are medians of rates; a higher ratio is better. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drive import growth
from benchmarks.drive.chart import chart
from benchmarks.drive.goals import CLIENTS, GOALS, HAND_OFF_MS
from benchmarks.drive.ping_pong import ping_pong
from benchmarks.peers.choose import BUCKETS, FULL_SIZE, NAMES, Peers
from benchmarks.report import RESULTS, machine, markdown, revision, write
from benchmarks.stores import stores
from wrkfs.bench.figures import format_figure, summary, table
from wrkfs.bench.material import CACHE, prepare
from wrkfs.bench.measure import Plan, measure
from wrkfs.bench.place import FULL, QUICK
from wrkfs.bench.workloads import ALL, BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wrkfs.bench.place import Size

REPEAT, QUICK_REPEAT = 5, 2
ROUNDS, QUICK_ROUNDS = 1000, 40
"""Rounds of the ping-pong."""
LIMIT, QUICK_LIMIT = 1800.0, 40.0
"""Time limit of a step of a work, in seconds."""
US, THEM = "ours", "juicefs"


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
    ratios = {work: figures.get("ratio") for work, figures in found["works"].items()}
    title = "Drive: ours / JuiceFS, one client"
    write(arguments.out, "drive", lines(found), found, chart(title, ratios, GOALS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive.measure")
    add = parser.add_argument
    add("--quick", action="store_true", help=f"small works, {QUICK_REPEAT} repetitions")
    add("--repeat", type=int, help=f"repetitions (default: {REPEAT})")
    add("--work", action="append", choices=sorted(BY_NAME), help="measure only this work (repeat)")
    add("--peer", action="append", choices=NAMES, help="compare only with this peer (repeat)")
    add("--no-parallel", action="store_true", help=f"skip the works of {CLIENTS} clients")
    add("--growth", action="store_true", help="also run `python -m benchmarks.drive.growth`")
    add("--out", type=Path, default=RESULTS, help="directory of the results")
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
    for work, series in measure(buckets, small, _tell).items():
        found[work] |= series
    result: dict[str, Any] = {
        "repeat": repeat,
        "size": asdict(size),
        "works": summary(found, US, THEM, GOALS),
    }
    if not arguments.no_parallel:
        each = size.shared_by(CLIENTS)
        plan = replace(one, size=each, material=prepare(cache, each, workloads), clients=CLIENTS)
        plan = replace(plan, label="four", repeat=1 if quick else repeat)
        pair = [peer for peer in whole if peer.name in {US, THEM}]
        result["parallel"] = {
            "clients": CLIENTS,
            "repeat": plan.repeat,
            "works": _beside(result["works"], summary(measure(pair, plan, _tell), US, THEM)),
        }
    result["ping_pong"] = {
        peer.name: _ping_pong(peers, peer.name, peer.path, QUICK_ROUNDS if quick else ROUNDS)
        for peer in whole
        if peer.name in {US, THEM}
    }
    result["peers"] = [peer.name for peer in [*whole, *buckets]]
    result["missing"] = peers.missing
    return result


def _part(plan: Plan) -> Size:
    return replace(plan.size, files=min(plan.size.files, 100), entries=100, mib=plan.size.mib // 4)


def _beside(
    alone: dict[str, dict[str, Any]], together: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the figures of many clients. Their goal is the ratio of one client."""
    for name, figures in together.items():
        if alone[name]["ratio"] is not None:
            figures["goal"] = alone[name]["ratio"]
    return together


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


def lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    about = found["machine"]
    size = found["size"]
    text = [
        "# Drive",
        "",
        f"Medians of {found['repeat']} interleaved repetitions on the same PostgreSQL and object "
        f"server; ratio: ours / JuiceFS. {size['files']} files, trees of {size['tree']} files "
        f"({size['clone']} to clone), "
        f"{size['mib']} MiB. `-`: not measured.",
        "",
        f"{about['cpus']} x {about['cpu']}, {about['memory']}, {about['system']}, kernel "
        f"{about['kernel']}; load before {about['load_before']}; commit {found['commit'][:12]}, "
        f"{found['date']}.",
        "",
    ]
    text += [f"Missing: {name} ({why})." for name, why in found["missing"].items()]
    text += ["", *markdown(table(found["works"], found["peers"], ratio=True), left=2)]
    text += ["", "![ratios](drive.svg)"]
    if "parallel" in found:
        both = [name for name in (US, THEM) if name in found["peers"]]
        text += ["", f"## {found['parallel']['clients']} clients that share the same work", ""]
        text += [
            f"Medians of {found['parallel']['repeat']} repetitions. The goal is the ratio of one "
            "client.",
            "",
        ]
        text += markdown(table(found["parallel"]["works"], both, ratio=True), left=2)
    text += ["", "## Ping-pong: one mount creates a file, the other calls stat", ""]
    text += [f"Goal: create and stat together take at most {HAND_OFF_MS:g} ms; no stale answers."]
    text += ["", *markdown(_ping_pong_rows(found["ping_pong"]))]
    text += _failures(found["works"])
    if "growth" in found:
        text += ["", *growth.lines(found["growth"])]
    return text


def _ping_pong_rows(found: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    keys = ("create_p50_ms", "stat_p50_ms", "hand_off_p50_ms", "hand_off_p95_ms", "stale", "rounds")
    rows: list[tuple[str, ...]] = [("mounts", *keys)]
    rows += [
        (name, *(format_figure(figures.get(key, "fails")) for key in keys))
        for name, figures in found.items()
    ]
    return rows


def _failures(workloads: dict[str, dict[str, Any]]) -> Sequence[str]:
    found = [
        f"- {work} on {peer}: {text}"
        for work, figures in workloads.items()
        for peer, text in figures.get("errors", {}).items()
    ]
    return ["", "## Failures", "", *found] if found else []


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
