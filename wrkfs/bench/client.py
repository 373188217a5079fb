"""A process that does works when told to: `python -m wrkfs.bench.client`, JSON lines in and out.

`{"step": "have" | "do", "work": NAME, "place": {...}}` is answered by `{"count", "start", "end"}`
in units and seconds of the monotonic clock, which all processes share, or by `{"error": TEXT}`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from wrkfs.bench.place import WorkFailed, place_from
from wrkfs.bench.works import BY_NAME


def main() -> None:
    """Works until its input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Does one step."""
    work, place = BY_NAME[order["work"]], place_from(order["place"])
    start = time.perf_counter()
    try:
        if order["step"] == "do":
            count = work.do(place)
        else:
            place.directory.mkdir(parents=True, exist_ok=True)
            place.lasting.mkdir(parents=True, exist_ok=True)
            if work.have is not None:
                work.have(place)
            count = 0
    except (OSError, WorkFailed) as error:
        return {"error": str(error)}
    return {"count": count, "start": start, "end": time.perf_counter()}


if __name__ == "__main__":
    main()
