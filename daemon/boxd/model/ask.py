"""Questions of programs to their owner, as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

State: TypeAlias = Literal["open", "answered", "expired"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question; the first answer counts.

    `id` is 32 hex digits; `box_id` the box in which it was asked, which may be gone, None: in none.
    `options` are the answers to choose from; without any, every text is one. `asker` is the id of
    the API key, or of the box, that asked; None: the owner by SSH.
    """

    id: str
    owner: str
    workspace: str | None
    box_id: str | None
    question: str
    options: tuple[str, ...]
    created: datetime
    expires: datetime
    answer: str | None = None
    answered: datetime | None = None
    asker: str | None = None

    def state(self, now: datetime) -> State:
        """What `now` can be done with it."""
        if self.answer is not None:
            return "answered"
        return "open" if now < self.expires else "expired"


@dataclass(frozen=True, slots=True)
class AskResult:
    """What became of a question so far."""

    id: str
    state: State
    answer: str | None

    def to_json(self) -> dict[str, Any]:
        """`answer` is there once there is one."""
        told = {"id": self.id, "state": self.state}
        return told if self.answer is None else told | {"answer": self.answer}


@dataclass(frozen=True, slots=True)
class AskView:
    """A question as its owner sees it; `box` is the reference of the box, None when it is gone."""

    ask: Ask
    box: str | None
    state: State

    def to_json(self) -> dict[str, Any]:
        """The one JSON form."""
        return {
            "id": self.ask.id,
            "box": self.box,
            "workspace": self.ask.workspace,
            "question": self.ask.question,
            "options": list(self.ask.options),
            "state": self.state,
            "created": self.ask.created.isoformat(),
        }
