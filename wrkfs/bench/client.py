"""A client process that runs workloads: `python -m wrkfs.bench.client`, JSON lines in and out.

A request is `{"step": "have" | "do", "work": NAME, "place": {...}}`: "have" prepares the workload,
"do" runs it. The answer is `{"count", "start", "end"}` or `{"error": TEXT}`. `count` is in units of
the workload. The times are seconds of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from wrkfs.bench.place import WorkloadFailed, place_from
from wrkfs.bench.workloads import BY_NAME


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do one step; return the answer."""
    workload, place = BY_NAME[request["work"]], place_from(request["place"])
    start = time.perf_counter()
    try:
        if request["step"] == "do":
            count = workload.run(place)
        else:
            place.directory.mkdir(parents=True, exist_ok=True)
            place.lasting.mkdir(parents=True, exist_ok=True)
            if workload.prepare is not None:
                workload.prepare(place)
            count = 0
    except (OSError, WorkloadFailed) as error:
        return {"error": str(error)}
    return {"count": count, "start": start, "end": time.perf_counter()}


if __name__ == "__main__":
    main()
