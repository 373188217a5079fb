"""A daemon that can die at any step: its calls to the parts around it pass through this module.

After its death every call fails at once and does nothing. So the remaining code has no effect, as
if the process had ended at that step.
"""

from __future__ import annotations

import inspect
from typing import TypeVar, cast

T = TypeVar("T")


class Died(BaseException):
    """The daemon's process has ended at this step."""


class Life:
    """The life of one daemon, counted in steps: two for each call, before and after its work."""

    def __init__(self) -> None:
        self.dead = False
        self.steps: list[str] = []
        self._end_at = ""
        self._steps_left: int | None = None

    def end_at(self, step: str) -> None:
        """Let the daemon die at the next step of that name: `backend.stop`, `backend.stop done`."""
        self._end_at = step

    def end_after(self, steps: int | None) -> None:
        """Let the daemon die after so many more steps; None: it does not die."""
        self._steps_left = steps

    def step(self, name: str) -> None:
        """Raise Died if the daemon is dead, or dies at this step."""
        if self.dead:
            raise Died(name)
        self.steps.append(name)
        if self._steps_left is not None:
            self._steps_left -= 1
        if name == self._end_at or (self._steps_left is not None and self._steps_left < 0):
            self.dead = True
            raise Died(name)


class _Mortal:
    def __init__(self, part: object, life: Life, name: str) -> None:
        self._part, self._life, self._name = part, life, name

    def __getattr__(self, name: str) -> object:
        value = getattr(self._part, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: object, **kwargs: object) -> object:
            self._life.step(f"{self._name}.{name}")
            result = await value(*args, **kwargs)
            self._life.step(f"{self._name}.{name} done")
            return result

        return call


def mortal(part: T, life: Life, name: str) -> T:
    """Return `part` as the daemon of that life reaches it; its steps are named `name`.VERB."""
    return cast("T", _Mortal(part, life, name))
