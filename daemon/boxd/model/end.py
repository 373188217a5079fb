"""What is over by itself, without anybody's act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

Passing: TypeAlias = Literal["canvas", "ask"]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a canvas or a question, `at` a moment of the wall clock. `workspace`: where it
    belongs, as its own row says."""

    what: Passing
    owner: str
    workspace: str | None
    id: str
    at: datetime
