"""Reads the progress of a build from the output of mmdebstrap. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PHASES = (
    ("running apt-get update", "reading package lists", 2),
    ("downloading packages with apt", "downloading", 8),
    ("extracting archives", "unpacking the core", 20),
    ("installing essential packages", "installing the core", 30),
    ("downloading apt", "downloading", 40),
    ("installing apt", "installing apt", 42),
    ("installing remaining packages", "installing packages", 45),
    ("cleaning package lists", "cleaning up", 92),
)
_PACKAGES_FROM, _PACKAGES_TO = 45.0, 92.0
_COUNT = re.compile(r"(?<!\d)(\d{1,9}) newly installed")
_STEPS = ("Get:", "Unpacking ", "Setting up ")


@dataclass(frozen=True, slots=True)
class Progress:
    """`percent` only rises; `phase` is a few words for users."""

    percent: float
    phase: str

    def __str__(self) -> str:
        return f"{self.percent:3.0f} % {self.phase}"


class ProgressReader:
    """Turns lines of output into progress."""

    def __init__(self) -> None:
        self._current = Progress(0.0, "starting")
        self._expected = 0
        self._steps = 0
        self._counting = False

    def feed(self, line: str) -> Progress | None:
        """Return the new progress if the line changes it."""
        for marker, phase, percent in _PHASES:
            if line.startswith("I: ") and marker in line:
                self._counting = percent == _PACKAGES_FROM
                self._steps = 0
                return self._move(float(percent), phase)
        if not self._counting:
            return None
        count = _COUNT.search(line)
        if count:
            self._expected = int(count[1]) * len(_STEPS)
        elif line.startswith(_STEPS) and self._expected:
            self._steps = min(self._steps + 1, self._expected)
            share = self._steps / self._expected
            span = _PACKAGES_TO - _PACKAGES_FROM
            return self._move(_PACKAGES_FROM + share * span, self._current.phase)
        return None

    def _move(self, percent: float, phase: str) -> Progress | None:
        progress = Progress(max(percent, self._current.percent), phase)
        if progress == self._current:
            return None
        self._current = progress
        return progress
