"""A call of a `LeaseSession` under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.lease_session import LeaseSession
    from wrkfs.types import Ino

VISIBLE = ("create", "mkdir", "link", "unlink", "rmdir", "rename", "setattr", "commit")
"""Changes that others may see."""


class Request:
    """One call of a session on its way."""

    def __init__(
        self, session: LeaseSession, number: int, kind: str, args: tuple[Any, ...]
    ) -> None:
        self.session, self.number, self.kind, self.args = session, number, kind, args
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.stage = "lock" if kind in (*VISIBLE, "open", "release", "sustain") else "do"
        self.rows: set[Ino] = set()
        self.homes: set[Ino] = set()
        self.found: set[tuple[Ino, int]] = set()
        self.seen: set[tuple[Ino, int, int]] = set()
        self.ended: set[int] = set()
        self.impatience = session.database.impatience
        self.is_cut = False
        self.delegates = False
        """The directory that it makes comes with a delegation."""
        self.answer: Any = None
        self.error: BaseException | None = None

    def answered(self, answer: object = None, error: BaseException | None = None) -> None:
        """The answer is on its way."""
        self.stage, self.answer, self.error = "deliver", answer, error

    def cut(self, error: BaseException) -> None:
        """Its sender hears no answer; what is on its way may still be applied."""
        self.is_cut = True
        self.future.set_exception(error)
