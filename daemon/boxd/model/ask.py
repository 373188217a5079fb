"""Questions of programs to their owner, as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Ask:
    """One question; the first answer counts.

    `id` is 32 hex digits; `box_id` the box in which it was asked, which may be gone, None: in none.
    `options` are the answers to choose from; without any, every text is one.
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

    def state(self, now: datetime) -> Literal["open", "answered", "expired"]:
        """What `now` can be done with it."""
        if self.answer is not None:
            return "answered"
        return "open" if now < self.expires else "expired"
