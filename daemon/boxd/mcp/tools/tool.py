"""The definition of a tool, and the call that its handler receives."""

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
    """One call of a tool.

    `report_progress` sends the client a line about the work. `reserve` waits for room for a result
    of this many bytes, as `boxd.boxes.limits.budgets.results.Share.take` does.
    """

    principal: Principal
    operations: Operations
    args: Mapping[str, Any]
    report_progress: Callable[[str], None]
    reserve: Callable[[int], Awaitable[None]]

    def progress(self) -> Progress:
        """Return reports that show the client notes and steps as lines."""
        return Progress.in_lines(self.report_progress, self.report_progress)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. `title` is its name for people, `description` is for models.

    The handler `run` raises BoxdError on failure. It returns an object that matches `result`, the
    `properties` of a JSON schema.
    """

    name: str
    title: str
    description: str
    run: Callable[[Call], Awaitable[dict[str, Any]]]
    params: tuple[Param, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """Members of the result that may be missing."""
    read_only: bool = False
    """The protocol's readOnlyHint: the tool changes nothing."""
    destructive: bool = False
    """The protocol's destructiveHint: the tool may delete or overwrite something."""
    idempotent: bool = False
    """The protocol's idempotentHint: a repeated call with the same arguments changes nothing."""
    open_world: bool = False
    """The protocol's openWorldHint: the tool runs the caller's code, which can do all that a box
    can."""

    @property
    def alias(self) -> str:
        """The name with a dot: `wrk.list` for `wrk_list`."""
        return self.name.replace("_", ".", 1)

    def output(self) -> dict[str, Any]:
        """Return the JSON schema of the result."""
        return {
            "type": "object",
            "properties": dict(self.result),
            "required": sorted(set(self.result) - self.optional),
        }
