"""Asks: questions of programs to their owner, from boxes and sessions. The first answer counts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from box_guest import protocol
from boxd.authz import Action, require
from boxd.boxes.feed import ASKS
from boxd.errors import Ambiguous, BadRequest, Conflict, NotFound, QuotaExceeded
from boxd.model.ask import Ask, AskResult, AskView
from boxd.model.end import End
from boxd.names.words import fold, shown
from boxd.operations.boxes import BoxOperations
from boxd.operations.core import checked_workspace
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from boxd.principal import Principal

LIVES = timedelta(hours=24)
"""How long a question waits for its answer, and how long its end can be asked for afterwards."""
MAX_OPEN = 100
"""Open questions to one owner."""
MAX_OF_ASKER = 25
"""Of them, those of one API key, or of the program in one box."""
MAX_OF_WORKSPACE = 50
"""Of them, those of all keys and boxes about one named workspace: whoever is confined to it can ask
by its boxes as well."""
MAX_ANSWER = 4000
"""Characters of an answer."""
MAX_WAIT_S = 600
"""Seconds in which one call waits for an answer."""


class AskOperations(BoxOperations):
    """See the module."""

    async def list_asks(self, p: Principal) -> list[AskView]:
        """The open questions that the principal may see, oldest first."""
        require(p, Action.LIST_ASKS)
        refs = {box.id: box.ref for box in await self._store.boxes(p.owner)}
        now = self._clock.now()
        return [
            AskView(ask, refs.get(ask.box_id or ""), "open")
            for ask in await self._asks_of(p)
            if ask.state(now) == "open"
        ]

    async def ask(
        self,
        p: Principal,
        question: str,
        options: Sequence[str] = (),
        *,
        box: str | None = None,
        ws: str | None = None,
        wait_s: float = 0,
    ) -> AskResult:
        """Asks the owner something, on behalf of a box or of none, and waits for the answer.

        After `wait_s` seconds it is still `open`: `wait_ask` waits on. BadRequest, QuotaExceeded;
        of a box what `resolve` raises.
        """
        require(p, Action.MAKE_ASK)
        _check_wait(wait_s)
        try:
            asked = protocol.request_parameters(
                {"type": protocol.ASK, "question": question, "options": list(options)}
            )
        except protocol.ProtocolError as error:
            raise BadRequest(str(error)) from None
        found = None if box is None else await self.resolve(p, box, ws)
        workspace = checked_workspace(p, ws) if found is None else found.workspace
        box_id = None if found is None else found.id
        ask = await self._add_ask(p.owner, workspace, box_id, asked, p.key_id)
        return await self._awaited(p, ask, wait_s)

    async def wait_ask(self, p: Principal, ask_id: str, wait_s: float = 0) -> AskResult:
        """What became of a question, named by the beginning of its id; waits while it is open.

        NotFound, Ambiguous, BadRequest.
        """
        require(p, Action.LIST_ASKS)
        _check_wait(wait_s)
        return await self._awaited(p, _named(await self._asks_of(p), ask_id), wait_s)

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
        answered = await self._store.answer_ask(ask.id, answer, self._clock.now())
        self._ends.drop("ask", p.owner, ask.workspace, ask.id)
        self._feed.asks(p.owner, ask.workspace)
        return answered

    async def request_of_box(
        self, box_id: str, verb: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """`ask` or `ask_state`, asked for by the agent of a box, which its tunnel proves to be it.

        `params` were checked by `protocol.request_parameters`. NotFound, QuotaExceeded.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        if verb == protocol.ASK_STATE:
            now = self._clock.now()
            for ask in await self._store.asks(box.owner):
                if (ask.id, ask.box_id) == (params["ask"], box_id):
                    return {"state": ask.state(now), "answer": ask.answer}
            raise NotFound("this box has asked no such question, or it is long over")
        ask = await self._add_ask(box.owner, box.workspace, box.id, params, box.id)
        return {"ask": ask.id}

    async def _add_ask(
        self,
        owner: str,
        workspace: str | None,
        box_id: str | None,
        asked: dict[str, Any],
        asker: str | None,
    ) -> Ask:
        """Records a question if there are not too many. QuotaExceeded."""
        now = self._clock.now()
        await self._store.remove_asks(now - LIVES)
        ask = Ask(
            id=random_hex(16),
            owner=owner,
            workspace=workspace,
            box_id=box_id,
            question=asked["question"],
            options=tuple(asked["options"]),
            created=now,
            expires=now + LIVES,
            asker=asker,
        )
        async with self._minting:
            asks = await self._store.asks(owner)
            _check_room([one for one in asks if one.state(now) == "open"], ask)
            await self._store.add_ask(ask)
        self._ends.put(End("ask", owner, workspace, ask.id, ask.expires))
        self._feed.asks(owner, workspace)
        return ask

    async def _awaited(self, p: Principal, ask: Ask, wait_s: float) -> AskResult:
        """Reads the question again whenever one of the owner changes, as long as it is open."""
        try:
            with self._feed.listen(p.owner, p.scope) as heard:
                async with asyncio.timeout(wait_s):
                    while ask.state(self._clock.now()) == "open":
                        ask = _named(await self._asks_of(p), ask.id)
                        while ask.answer is None and ASKS not in await heard.next():
                            pass
        except TimeoutError:
            pass  # it is open still
        return AskResult(ask.id, ask.state(self._clock.now()), ask.answer)

    async def _asks_of(self, p: Principal) -> list[Ask]:
        """All questions that the principal may see, oldest first."""
        asks = await self._store.asks(p.owner)
        return [ask for ask in asks if p.scope in (None, ask.workspace)]

    async def _open_ask(self, p: Principal, ask_id: str) -> Ask:
        """The open question of that id. NotFound, Ambiguous; Conflict for one that is over."""
        now, asks = self._clock.now(), await self._asks_of(p)
        openly = [ask for ask in asks if ask.state(now) == "open"]
        if not _beginning(openly, ask_id) and (over := _beginning(asks, ask_id)):
            raise Conflict(f"the question {shown(ask_id)} is {over[-1].state(now)} already")
        return _named(openly, ask_id)


def _check_room(others: list[Ask], ask: Ask) -> None:
    """Whether a question may join the open ones of its owner. QuotaExceeded."""
    full = ""
    if len(others) >= MAX_OPEN:
        full = f"{MAX_OPEN} open questions per owner"
    elif ask.asker is not None:
        about = [one for one in others if one.asker is not None and one.workspace == ask.workspace]
        if sum(one.asker == ask.asker for one in others) >= MAX_OF_ASKER:
            full = f"{MAX_OF_ASKER} open questions of one API key or box"
        elif ask.workspace is not None and len(about) >= MAX_OF_WORKSPACE:
            full = (
                f"{MAX_OF_WORKSPACE} open questions of keys and boxes in workspace {ask.workspace}"
            )
    if full:
        raise QuotaExceeded(
            f"limit reached: {full}; wait until their owner has answered one of them "
            "(asks answer ID TEXT); see: asks ls"
        )


def _beginning(asks: list[Ask], ask_id: str) -> list[Ask]:
    return [ask for ask in asks if ask_id and ask.id.startswith(fold(ask_id))]


def _named(asks: list[Ask], ask_id: str) -> Ask:
    """The one whose id begins so. NotFound, Ambiguous."""
    found = _beginning(asks, ask_id)
    if not found:
        raise NotFound(f"no open question {shown(ask_id)}; see: asks ls")
    if len(found) > 1:
        ids = ", ".join(ask.id for ask in found[:10])
        raise Ambiguous(f"{shown(ask_id)} begins several questions: {ids}")
    return found[0]


def _check_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise BadRequest(f"an answer is waited for from 0 to {MAX_WAIT_S} seconds")
