"""Run the same workloads in several directories, interleaved, and compare their speed.

The command needs no credentials: DIR may be on a mounted drive, on a local disk, or anywhere else.
It creates a temporary directory below each DIR and removes it at the end. Cold workloads need root,
because they drop the caches of the kernel. They do not drop the caches of a mount process. Run
nothing else on the machine meanwhile.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.bench.figures import aligned, summary, table
from wrkfs.bench.material import CACHE, prepare
from wrkfs.bench.measure import Plan, measure
from wrkfs.bench.place import FULL, QUICK, WorkloadFailed
from wrkfs.bench.target import Directory
from wrkfs.bench.workloads import ALL, BY_NAME

if TYPE_CHECKING:
    import argparse

HELP = "compare the speed of directories, such as a mounted drive and a local disk"
REPEAT = 5
QUICK_REPEAT = 2


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="directory to measure")
    add(
        "--peer",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="directory to compare with; may be repeated",
    )
    add("--quick", action="store_true", help=f"small workloads, {QUICK_REPEAT} repetitions")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file")
    add("--repeat", type=int, metavar="N", help=f"repetitions (default: {REPEAT})")
    add(
        "--clients",
        type=int,
        default=1,
        metavar="N",
        help="processes that share each workload (default: 1)",
    )
    add(
        "--work",
        action="append",
        choices=sorted(BY_NAME),
        metavar="NAME",
        help="run only this workload; may be repeated",
    )
    add(
        "--cache",
        type=Path,
        default=CACHE,
        metavar="DIR",
        help=f"directory for downloaded archives (default: {CACHE})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the workloads. Exit status: 0 success, 1 at least one workload failed."""
    repeat = arguments.repeat or (QUICK_REPEAT if arguments.quick else REPEAT)
    size = (QUICK if arguments.quick else FULL).shared_by(arguments.clients)
    try:
        with ExitStack() as stack:
            targets = [
                _Corner(stack, path)
                for path in dict.fromkeys([arguments.directory, *arguments.peer])
            ]
            workloads = tuple(w for w in ALL if not arguments.work or w.name in arguments.work)
            material = prepare(arguments.cache.expanduser(), size, workloads)
            plan = Plan(size, material, repeat, workloads, arguments.clients)
            measurements = measure(targets, plan, _tell)
    except (OSError, WorkloadFailed) as error:
        sys.stderr.write(f"wrkfs bench: {error}\n")
        return 1
    names = [target.name for target in targets]
    reference = names[1] if len(names) > 1 else None
    figures = summary(measurements, names[0], reference)
    rows = table(figures, names, ratio=reference is not None)
    sys.stdout.writelines(f"{line}\n" for line in aligned(rows))
    errors = [
        (name, *pair) for name, work in figures.items() for pair in work.get("errors", {}).items()
    ]
    sys.stdout.writelines(f"{work} fails in {name}: {text}\n" for work, name, text in errors)
    if arguments.json is not None:
        result = {"repeat": repeat, "clients": arguments.clients, "works": figures}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if errors else 0


class _Corner(Directory):
    """A temporary directory below a directory of the user, shown by the name of the latter."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        corner = Path(tempfile.mkdtemp(prefix=".wrkfs-bench-", dir=path))
        stack.callback(shutil.rmtree, corner, ignore_errors=True)
        super().__init__(corner)
        self.name = str(path)


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
