"""Writes results: JSON for programs, a Markdown table for people, and a chart."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

RESULTS = Path(__file__).parent / "results"


def asked(name: str) -> tuple[bool, Path]:
    """Parse the command line of `python -m benchmarks.NAME`.

    Returns whether the run is quick, and the directory of the results. Quick runs do not replace
    the committed results. From now on SIGTERM ends the program, with its servers, as Ctrl-C does.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument(
        "--quick", action="store_true", help="few runs; results go to a new directory"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    return given.quick, directory_of(given.to, quick=given.quick)


def directory_of(given: Path, *, quick: bool) -> Path:
    """Return the directory of the results: the given one, or a new one for quick runs.

    Quick runs do not replace the committed results.
    """
    if quick and given == RESULTS:
        return Path(tempfile.mkdtemp(prefix="bench-"))
    return given


def _end(_signal: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that the service is stopped, too."""
    raise KeyboardInterrupt


def machine() -> dict[str, object]:
    """Return facts about this machine."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _field(Path("/proc/cpuinfo"), "model name"),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def revision() -> dict[str, object]:
    """Return the commit (with "+" if files have changed) and the date."""
    return {
        "commit": _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def markdown(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return a table. The first `left` columns are text, the others are figures."""
    head, *body = rows
    rule = "|" + "---|" * left + "---:|" * (len(head) - left)
    return [_line(head), rule, *(_line(row) for row in body)]


def save(
    name: str,
    title: str,
    rows: Sequence[tuple[str, ...]],
    result: Mapping[str, object],
) -> None:
    """Print a table and write `results/NAME.json` and `results/NAME.md`."""
    write(RESULTS, name, [title, "", *markdown(rows)], result)


def write(
    directory: Path, name: str, lines: Sequence[str], result: Mapping[str, object], svg: str = ""
) -> None:
    """Print the lines and write `NAME.json`, `NAME.md` and, if given, `NAME.svg`."""
    text = "\n".join(lines) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.md").write_text(text, encoding="utf-8")
    (directory / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if svg:
        (directory / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _field(path: Path, name: str) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
