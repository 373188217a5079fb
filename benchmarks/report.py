"""How results are kept: JSON for programs, a Markdown table for people."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def save(
    name: str, title: str, rows: Sequence[tuple[str, ...]], result: Mapping[str, object]
) -> None:
    """Prints the table and writes `results/NAME.json` and `results/NAME.md`."""
    head, *body = rows
    lines = [title, "", "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(text)
