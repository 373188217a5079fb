"""Figures of the reliability catalogue: so many rounds in CI, so many in the long run.

A test of the catalogue is marked `figure("CR-1")` and loops over `figures(ci=80, long=5000)`, which
yields round numbers: the seeds. `make test` makes the CI figure. `make long` makes the long one, of
all parts or of `PART="CR-1 VI-1"`, each for at most `MINUTES`; what a part has reached is kept in
`.build/long/`, so the next run goes on where it stopped (or failed). `make long-status` tells, with
the rounds that each commit has made: a figure is worth what the code was that made it.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT = Path(".build/long")
SAVE_EVERY = 5.0
"""Seconds between two savings of the state of a part."""


@dataclass(slots=True)
class Reached:
    """What a part has reached so far, over all its runs."""

    name: str
    done: int = 0
    goal: int = 0
    seconds: float = 0.0
    commits: dict[str, int] = field(default_factory=dict)
    """Rounds made with each commit, in the order of their first; `+`: with changes to it."""
    last_failure: int | None = None

    @classmethod
    def load(cls, name: str) -> Reached:
        """From its file; nothing reached when there is none."""
        file = KEPT / f"{name}.json"
        if not file.exists():
            return cls(name)
        raw = json.loads(file.read_text())
        # Files of before had one commit for everything.
        if "commit" in raw:
            raw["commits"] = {raw.pop("commit"): raw["done"]}
        return cls(**raw)

    def passed(self, commit: str) -> None:
        """One more round."""
        self.done += 1
        self.commits[commit] = self.commits.get(commit, 0) + 1

    def save(self) -> None:
        """Replaces the file at once."""
        KEPT.mkdir(parents=True, exist_ok=True)
        fresh = KEPT / f".{self.name}"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(KEPT / f"{self.name}.json")


class Figures:
    """The rounds of one test. Call it once; a test with several loops gives each a `part`."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        self._name = name
        self._long: bool = config.getoption("--long")
        self._minutes: float = config.getoption("--minutes")

    @property
    def long(self) -> bool:
        """Whether this is the long run."""
        return self._long

    def __call__(self, *, ci: int, long: int, part: str = "") -> Iterator[int]:
        """Round numbers, each the seed of its round."""
        if not self._long:
            yield from range(ci)
            return
        reached = Reached.load(f"{self._name}-{part}" if part else self._name)
        reached.goal, commit = long, _commit()
        saved = time.monotonic()
        end = saved + 60 * self._minutes
        try:
            while reached.done < long and time.monotonic() < end:
                reached.last_failure = reached.done
                yield reached.done
                reached.last_failure = None
                reached.passed(commit)
                if time.monotonic() > saved + SAVE_EVERY:
                    reached.seconds += time.monotonic() - saved
                    saved = time.monotonic()
                    reached.save()
        finally:
            reached.seconds += time.monotonic() - saved
            reached.save()


def _commit() -> str:
    # Tags never count; `+` marks files that differ from the commit.
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """How many rounds this test makes; the test is marked `figure(id)`."""
    marker = request.node.get_closest_marker("figure")
    assert marker is not None, "the test needs a mark: figure(id)"
    variant = re.sub(r"[^A-Za-z0-9]+", "_", request.node.name.removeprefix("test_")).strip("_")
    return Figures(request.config, f"{marker.args[0]}-{variant}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long`, `--part`, `--minutes`."""
    group = parser.getgroup("figures of the reliability catalogue")
    group.addoption("--long", action="store_true", help="the long figures, marked tests only")
    group.addoption("--part", action="append", default=[], help="only tests of this id")
    group.addoption("--minutes", type=float, default=60.0, help="longest time of one part")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long run takes marked tests only and has no time limit of its own."""
    if not config.getoption("--long"):
        return
    parts = set(config.getoption("--part"))
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("figure")
        wanted = marker is not None and (not parts or marker.args[0] in parts)
        (chosen if wanted else others).append(item)
    for item in chosen:
        item.own_markers = [mark for mark in item.own_markers if mark.name != "timeout"]
        item.add_marker(pytest.mark.timeout(0))
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def status() -> Iterator[str]:
    """A line for each part that has been run."""
    for file in sorted(KEPT.glob("*.json")):
        one = Reached.load(file.stem)
        state = "" if one.last_failure is None else f"  FAILED in round {one.last_failure}"
        made = ", ".join(f"{commit or '?'} {rounds}" for commit, rounds in one.commits.items())
        yield (
            f"{one.name:<60} {one.done:>7} of {one.goal:>7}  {one.seconds / 60:7.1f} min{state}"
            f"  ({made})"
        )


if __name__ == "__main__":
    print("\n".join(status()))
