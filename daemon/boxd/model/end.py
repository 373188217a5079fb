"""Objects that expire by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Passing: TypeAlias = Literal["canvas", "ask"]


@dataclass(frozen=True, slots=True)
class End:
    """The expiry of a canvas or a question. `at` is wall-clock time.

    `workspace` is the workspace in the row of the object.
    """

    what: Passing
    owner: str
    workspace: str | None
    id: str
    at: datetime
