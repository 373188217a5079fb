"""Client processes that do one work at the same time."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from wrkfs.bench.place import WorkFailed, place_values
from wrkfs.bench.works import Caches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from wrkfs.bench.place import Place
    from wrkfs.bench.target import Target
    from wrkfs.bench.works import Work


class TooSlow(WorkFailed):
    """It was given up."""


class Crew:
    """So many clients. Use it as a context: they end with it."""

    def __init__(self, clients: int, limit: float) -> None:
        """`limit`: seconds that one step may take."""
        self._limit = limit
        self._clients = [_start() for _ in range(clients)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            _end(client)

    def rate(self, work: Work, target: Target, places: Sequence[Place]) -> float:
        """Units a second of all together. WorkFailed; OSError of the target's."""
        target.check()
        self._all("have", work, places)
        if work.caches is Caches.COLD:
            target.cool()
        elif work.caches is Caches.WARM:
            self._all("do", work, places)
        answers = self._all("do", work, places)
        target.check()
        start, end = (pick(a[key] for a in answers) for pick, key in ((min, "start"), (max, "end")))
        return float(sum(answer["count"] for answer in answers) / (end - start))

    def _all(self, step: str, work: Work, places: Sequence[Place]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + self._limit
        try:
            for client, place in zip(self._clients, places, strict=True):
                order = {"step": step, "work": work.name, "place": place_values(place)}
                _stream(client.stdin).write(json.dumps(order).encode() + b"\n")
                _stream(client.stdin).flush()
            answers = [_answer(client, deadline) for client in self._clients]
        except (OSError, WorkFailed) as error:
            # Nobody knows what they are at: the next work gets new ones.
            for number, client in enumerate(self._clients):
                _end(client)
                self._clients[number] = _start()
            if isinstance(error, TooSlow):
                raise TooSlow(f"took more than {self._limit:.0f} s") from None
            raise WorkFailed(f"a client died: {error}") from error
        for answer in answers:
            if "error" in answer:
                raise WorkFailed(answer["error"])
        return answers


def _answer(client: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    stream = _stream(client.stdout)
    if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise TooSlow
    line = stream.readline()
    if not line:
        raise WorkFailed("it said nothing")
    found: dict[str, Any] = json.loads(line)
    return found


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise WorkFailed("a client has no pipe")
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
