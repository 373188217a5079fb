"""Questions that programs ask their owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

State: TypeAlias = Literal["open", "answered", "expired"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question as stored. The first answer counts.

    `id` is 32 hex digits. `box_id` is the box that asked, which may be removed; None: no box.
    `options` are the allowed answers; if empty, any text is allowed. `asker` is the id of the API
    key or box that asked; None: the owner asked by SSH.
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
        """Return the state of the question at `now`."""
        if self.answer is not None:
            return "answered"
        return "open" if now < self.expires else "expired"


@dataclass(frozen=True, slots=True)
class AskResult:
    """The current state of a question, and its answer if there is one."""

    id: str
    state: State
    answer: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. It has `answer` only after the answer."""
        form = {"id": self.id, "state": self.state}
        return form if self.answer is None else form | {"answer": self.answer}


@dataclass(frozen=True, slots=True)
class AskView:
    """A question as its owner sees it. `box` is a reference to the box; None: it is removed."""

    ask: Ask
    box: str | None
    state: State

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "id": self.ask.id,
            "box": self.box,
            "workspace": self.ask.workspace,
            "question": self.ask.question,
            "options": list(self.ask.options),
            "state": self.state,
            "created": self.ask.created.isoformat(),
        }
