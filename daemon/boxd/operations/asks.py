"""Asks: questions of programs in boxes to their owner. The first answer counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from box_guest import protocol
from boxd.authz import Action, require
from boxd.errors import Ambiguous, BadRequest, NotFound, QuotaExceeded
from boxd.model.ask import Ask, AskView
from boxd.names.words import fold, shown
from boxd.operations.core import Core
from boxd.secret import random_hex

if TYPE_CHECKING:
    from typing import Any

    from boxd.principal import Principal

LIVES = timedelta(hours=24)
"""How long a question waits for its answer, and how long its end can be asked for afterwards."""
MAX_OPEN = 100
"""Open questions to one owner."""
MAX_ANSWER = 4000
"""Characters of an answer."""


class AskOperations(Core):
    """See the module."""

    async def list_asks(self, p: Principal) -> list[AskView]:
        """The open questions that the principal may see, oldest first."""
        require(p, Action.LIST_ASKS)
        refs = {box.id: box.ref for box in await self._store.boxes(p.owner)}
        now = self._clock.now()
        return [
            AskView(ask, refs.get(ask.box_id or ""), "open")
            for ask in await self._store.asks(p.owner)
            if ask.state(now) == "open" and p.scope in (None, ask.workspace)
        ]

    async def answer_ask(self, p: Principal, ask_id: str, answer: str) -> Ask:
        """Answers a question, named by the beginning of its id.

        NotFound, Ambiguous; Conflict when it was answered meanwhile; BadRequest for what is none of
        its options.
        """
        require(p, Action.ANSWER_ASK)
        ask = await self._open_ask(p, ask_id)
        if not answer or len(answer) > MAX_ANSWER:
            raise BadRequest(f"an answer has from 1 to {MAX_ANSWER} characters")
        if "\0" in answer:
            raise BadRequest("an answer is text without NUL characters")
        if ask.options and answer not in ask.options:
            options = ", ".join(shown(option) for option in ask.options)
            raise BadRequest(f"{shown(answer)} is no answer to this question; options: {options}")
        return await self._store.answer_ask(ask.id, answer, self._clock.now())

    async def request_of_box(
        self, box_id: str, verb: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """`ask` or `ask_state`, asked for by the agent of a box, which its tunnel proves to be it.

        `params` were checked by `protocol.request_parameters`. NotFound, QuotaExceeded.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        now = self._clock.now()
        if verb == protocol.ASK_STATE:
            for ask in await self._store.asks(box.owner):
                if (ask.id, ask.box_id) == (params["ask"], box_id):
                    return {"state": ask.state(now), "answer": ask.answer}
            raise NotFound("this box has asked no such question, or it is long over")
        await self._store.remove_asks(now - LIVES)
        ask = Ask(
            id=random_hex(16),
            owner=box.owner,
            workspace=box.workspace,
            box_id=box.id,
            question=params["question"],
            options=tuple(params["options"]),
            created=now,
            expires=now + LIVES,
        )
        async with self._minting:
            asks = await self._store.asks(box.owner)
            if sum(one.state(now) == "open" for one in asks) >= MAX_OPEN:
                raise QuotaExceeded(
                    f"limit reached: {MAX_OPEN} open questions per owner; their owner answers them "
                    "by: asks answer ID TEXT"
                )
            await self._store.add_ask(ask)
        return {"ask": ask.id}

    async def _open_ask(self, p: Principal, ask_id: str) -> Ask:
        found = [view.ask for view in await self.list_asks(p)]
        found = [ask for ask in found if ask_id and ask.id.startswith(fold(ask_id))]
        if not found:
            raise NotFound(f"no open question {shown(ask_id)}; see: asks ls")
        if len(found) > 1:
            ids = ", ".join(ask.id for ask in found[:10])
            raise Ambiguous(f"{shown(ask_id)} begins several questions: {ids}")
        return found[0]
