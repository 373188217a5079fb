"""Client processes that run one workload at the same time."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from wrkfs.bench.place import WorkloadFailed, place_values
from wrkfs.bench.workloads import Caches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from wrkfs.bench.place import Place
    from wrkfs.bench.target import Target
    from wrkfs.bench.workloads import Workload


class TooSlow(WorkloadFailed):
    """A step exceeded its time limit."""


class ClientPool:
    """Client processes. Use it as a context: the processes end with it."""

    def __init__(self, clients: int, limit: float) -> None:
        """`clients` is their number, `limit` the maximum number of seconds of one step."""
        self._limit = limit
        self._clients = [_start() for _ in range(clients)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            _end(client)

    def rate(self, workload: Workload, target: Target, places: Sequence[Place]) -> float:
        """Return the units per second of all clients together. Raises WorkloadFailed, OSError."""
        target.check()
        self._run_step("have", workload, places)
        if workload.caches is Caches.COLD:
            target.drop_caches()
        elif workload.caches is Caches.WARM:
            self._run_step("do", workload, places)
        answers = self._run_step("do", workload, places)
        target.check()
        start = min(answer["start"] for answer in answers)
        end = max(answer["end"] for answer in answers)
        return float(sum(answer["count"] for answer in answers) / (end - start))

    def _run_step(
        self, step: str, workload: Workload, places: Sequence[Place]
    ) -> list[dict[str, Any]]:
        deadline = time.monotonic() + self._limit
        try:
            for client, place in zip(self._clients, places, strict=True):
                request = {"step": step, "work": workload.name, "place": place_values(place)}
                _stream(client.stdin).write(json.dumps(request).encode() + b"\n")
                _stream(client.stdin).flush()
            answers = [_answer(client, deadline) for client in self._clients]
        except (OSError, WorkloadFailed) as error:
            # The clients may still be busy with this step, so new ones replace them.
            for number, client in enumerate(self._clients):
                _end(client)
                self._clients[number] = _start()
            if isinstance(error, TooSlow):
                raise TooSlow(f"took more than {self._limit:.0f} s") from None
            raise WorkloadFailed(f"a client process failed: {error}") from error
        for answer in answers:
            if "error" in answer:
                raise WorkloadFailed(answer["error"])
        return answers


def _answer(client: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    stream = _stream(client.stdout)
    if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise TooSlow
    line = stream.readline()
    if not line:
        raise WorkloadFailed("it ended without an answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise WorkloadFailed("it has no pipe")
    return stream


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "wrkfs.bench.client"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1)


def _end(client: subprocess.Popen[bytes]) -> None:
    client.kill()
    client.wait()
    for stream in (client.stdin, client.stdout):
        if stream is not None:
            stream.close()
