"""Does the same works in directories of your own, interleaved, and compares their speed.

Needs no credentials: DIR may lie on a mounted drive, on a local disk, anywhere. Works in a new
directory below each, which it removes at the end. Cold works need root, because caches of the
kernel are dropped; those of a mount process stay. Nothing else should run meanwhile.
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
from wrkfs.bench.place import FULL, QUICK, WorkFailed
from wrkfs.bench.target import Directory
from wrkfs.bench.works import ALL, BY_NAME

if TYPE_CHECKING:
    import argparse

HELP = "measures directories: a mounted drive beside any others"
REPEAT = 5
QUICK_REPEAT = 2


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="what is measured")
    add("--peer", type=Path, action="append", default=[], metavar="DIR", help="to compare with")
    add("--quick", action="store_true", help=f"little work, {QUICK_REPEAT} repetitions")
    add("--json", type=Path, metavar="FILE", help="write the figures there")
    add("--repeat", type=int, metavar="N", help=f"repetitions (default {REPEAT})")
    add("--clients", type=int, default=1, metavar="N", help="processes that share each work")
    add("--work", action="append", choices=sorted(BY_NAME), metavar="NAME", help="only these")
    add("--cache", type=Path, default=CACHE, metavar="DIR", help=f"for archives ({CACHE})")


def run(arguments: argparse.Namespace) -> int:
    """See the module. Exit status: 0 all works were done, 1 some failed."""
    repeat = arguments.repeat or (QUICK_REPEAT if arguments.quick else REPEAT)
    size = (QUICK if arguments.quick else FULL).shared_by(arguments.clients)
    try:
        with ExitStack() as stack:
            targets = [
                _Corner(stack, path)
                for path in dict.fromkeys([arguments.directory, *arguments.peer])
            ]
            works = tuple(w for w in ALL if not arguments.work or w.name in arguments.work)
            material = prepare(arguments.cache.expanduser(), size, works)
            plan = Plan(size, material, repeat, works, arguments.clients)
            found = measure(targets, plan, _tell)
    except (OSError, WorkFailed) as error:
        sys.stderr.write(f"wrkfs bench: {error}\n")
        return 1
    names = [target.name for target in targets]
    reference = names[1] if len(names) > 1 else None
    figures = summary(found, names[0], reference)
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
    """A new directory below the one that was given, called by the name that was given."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        corner = Path(tempfile.mkdtemp(prefix=".wrkfs-bench-", dir=path))
        stack.callback(shutil.rmtree, corner, ignore_errors=True)
        super().__init__(corner)
        self.name = str(path)


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
