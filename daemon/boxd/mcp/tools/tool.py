"""What a tool is, and what its handler is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from boxd.model.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from boxd.mcp.tools.params import Param
    from boxd.operations import Operations
    from boxd.principal import Principal


@dataclass(frozen=True, slots=True)
class Call:
    """One call: who, with which arguments. `tell` shows the client a line about the work, soon.

    `reserve`: waits for room for a result of so many bytes, as
    `boxd.boxes.limits.budgets.results.Share.take`.
    """

    principal: Principal
    operations: Operations
    args: Mapping[str, Any]
    tell: Callable[[str], None]
    reserve: Callable[[int], Awaitable[None]]

    def progress(self) -> Progress:
        """Return reports that show the client notes and steps as lines."""
        return Progress.in_lines(self.tell, self.tell)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. `title` is its name for people, `about` for models. Its handler raises BoxdError for
    what fails, and gives an object that fits `result`, the members of a JSON schema's `properties`.

    The hints are what the protocol calls so: `reads` changes nothing, `destroys` may take something
    away, `repeatable` does no more when it is done again.
    """

    name: str
    title: str
    about: str
    run: Callable[[Call], Awaitable[dict[str, Any]]]
    params: tuple[Param, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """Members of the result that may be missing."""
    reads: bool = False
    destroys: bool = False
    repeatable: bool = False
    outside: bool = False
    """It runs what the caller wrote, which may do anything that a box may."""

    @property
    def alias(self) -> str:
        """The name with a dot: `wrk.list` for `wrk_list`."""
        return self.name.replace("_", ".", 1)

    def output(self) -> dict[str, Any]:
        """The schema of the result."""
        return {
            "type": "object",
            "properties": dict(self.result),
            "required": sorted(set(self.result) - self.optional),
        }
