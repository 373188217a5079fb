"""Asks: questions of programs to their owner, from boxes and sessions.

The first answer counts; later ones are rejected.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from box_guest import protocol
from boxd.authz import Action, checked_workspace, require
from boxd.boxes.state.feed import ASKS
from boxd.errors import Ambiguous, BadRequest, Conflict, NotFound, QuotaExceeded
from boxd.model.ask import Ask, AskResult, AskView
from boxd.model.end import End
from boxd.names.words import fold, shown
from boxd.secret import random_hex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from boxd.boxes.state.expiry_notifier import ExpiryNotifier
    from boxd.boxes.state.feed import Feed
    from boxd.clock import Clock
    from boxd.operations.shared.box_directory import BoxDirectory
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

LIVES = timedelta(hours=24)
"""Lifetime of a question. Its result stays readable for the same time afterwards."""
MAX_OPEN = 100
"""Maximum number of open questions to one owner."""
MAX_OF_ASKER = 25
"""Maximum number of open questions of one API key, or of the programs in one box."""
MAX_OF_WORKSPACE = 50
"""Maximum number of open questions of all keys and boxes in one named workspace. A key with that
scope can also ask through the workspace's boxes."""
MAX_ANSWER = 4000
"""Maximum length of an answer, in characters."""
MAX_WAIT_S = 600
"""Maximum time that one call waits for an answer, in seconds."""


class AskOperations:
    """Records questions, waits for their answers and answers them.

    Critical section: `_adding` is held between counting an owner's questions and adding one.
    """

    def __init__(
        self,
        store: ControlStore,
        directory: BoxDirectory,
        feed: Feed,
        expiry_notifier: ExpiryNotifier,
        clock: Clock,
    ) -> None:
        self._store = store
        self._directory = directory
        self._feed = feed
        self._expiry_notifier = expiry_notifier
        self._clock = clock
        self._adding = asyncio.Lock()

    async def list_asks(self, p: Principal) -> list[AskView]:
        """Return the open questions that the principal can see, oldest first."""
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
        """Ask the owner a question, on behalf of a box or of none, and wait for the answer.

        If no answer arrives within `wait_s` seconds, the result is `open`; call `wait_ask` to wait
        again. Raises BadRequest, QuotaExceeded, and what `BoxDirectory.resolve` raises for the box.
        """
        require(p, Action.MAKE_ASK)
        _check_wait(wait_s)
        try:
            request = protocol.request_parameters(
                {"type": protocol.ASK, "question": question, "options": list(options)}
            )
        except protocol.ProtocolError as error:
            raise BadRequest(str(error)) from None
        asker_box = None if box is None else await self._directory.resolve(p, box, ws)
        workspace = checked_workspace(p, ws) if asker_box is None else asker_box.workspace
        box_id = None if asker_box is None else asker_box.id
        ask = await self._add_ask(p.owner, workspace, box_id, request, p.key_id)
        return await self._awaited(p, ask, wait_s)

    async def wait_ask(self, p: Principal, ask_id: str, wait_s: float = 0) -> AskResult:
        """Return the result of the question whose id starts with `ask_id`; wait while it is open.

        `wait_s` limits the wait, in seconds. Raises NotFound, Ambiguous, BadRequest.
        """
        require(p, Action.LIST_ASKS)
        _check_wait(wait_s)
        return await self._awaited(p, _one(await self._asks_of(p), ask_id), wait_s)

    async def answer_ask(self, p: Principal, ask_id: str, answer: str) -> Ask:
        """Answer the open question whose id starts with `ask_id`.

        Raises NotFound, Ambiguous; Conflict if the question is answered or expired; BadRequest for
        an answer that is not one of its options.
        """
        require(p, Action.ANSWER_ASK)
        ask = await self._open_ask(p, ask_id)
        if not answer or len(answer) > MAX_ANSWER:
            raise BadRequest(f"an answer must have 1 to {MAX_ANSWER} characters")
        if "\0" in answer:
            raise BadRequest("an answer cannot contain NUL characters")
        if ask.options and answer not in ask.options:
            options = ", ".join(shown(option) for option in ask.options)
            raise BadRequest(
                f"{shown(answer)} is not an option of this question; options: {options}"
            )
        answered = await self._store.answer_ask(ask.id, answer, self._clock.now())
        self._expiry_notifier.drop("ask", p.owner, ask.workspace, ask.id)
        self._feed.asks(p.owner, ask.workspace)
        return answered

    async def request_of_box(
        self, box_id: str, verb: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Serve `ask` or `ask_state` for the agent of a box, which its tunnel authenticates.

        `protocol.request_parameters` has checked `params`. Raises NotFound, QuotaExceeded.
        """
        box = await self._store.box(box_id)
        if box is None:
            raise NotFound("no such box")
        if verb == protocol.ASK_STATE:
            now = self._clock.now()
            for ask in await self._store.asks(box.owner):
                if (ask.id, ask.box_id) == (params["ask"], box_id):
                    return {"state": ask.state(now), "answer": ask.answer}
            raise NotFound("this box has no such question, or its record has expired")
        ask = await self._add_ask(box.owner, box.workspace, box.id, params, box.id)
        return {"ask": ask.id}

    async def _add_ask(
        self,
        owner: str,
        workspace: str | None,
        box_id: str | None,
        request: dict[str, Any],
        asker: str | None,
    ) -> Ask:
        """Record a question if the limits allow it. Raises QuotaExceeded."""
        now = self._clock.now()
        await self._store.remove_asks(now - LIVES)
        ask = Ask(
            id=random_hex(16),
            owner=owner,
            workspace=workspace,
            box_id=box_id,
            question=request["question"],
            options=tuple(request["options"]),
            created=now,
            expires=now + LIVES,
            asker=asker,
        )
        async with self._adding:
            asks = await self._store.asks(owner)
            _check_room([one for one in asks if one.state(now) == "open"], ask)
            await self._store.add_ask(ask)
        self._expiry_notifier.put(End("ask", owner, workspace, ask.id, ask.expires))
        self._feed.asks(owner, workspace)
        return ask

    async def _awaited(self, p: Principal, ask: Ask, wait_s: float) -> AskResult:
        """Read the question again after each change of the owner's questions, while it is open."""
        try:
            with self._feed.listen(p.owner, p.scope) as listener:
                async with asyncio.timeout(wait_s):
                    while ask.state(self._clock.now()) == "open":
                        ask = _one(await self._asks_of(p), ask.id)
                        while ask.answer is None and ASKS not in await listener.next():
                            pass
        except TimeoutError:
            pass  # the question is still open
        return AskResult(ask.id, ask.state(self._clock.now()), ask.answer)

    async def _asks_of(self, p: Principal) -> list[Ask]:
        """Return all questions that the principal can see, oldest first."""
        asks = await self._store.asks(p.owner)
        return [ask for ask in asks if p.scope in (None, ask.workspace)]

    async def _open_ask(self, p: Principal, ask_id: str) -> Ask:
        """Return the open question of an id.

        Raises NotFound, Ambiguous; Conflict for an answered or expired question.
        """
        now, asks = self._clock.now(), await self._asks_of(p)
        open_asks = [ask for ask in asks if ask.state(now) == "open"]
        if not _matches(open_asks, ask_id) and (closed := _matches(asks, ask_id)):
            raise Conflict(f"the question {shown(ask_id)} is already {closed[-1].state(now)}")
        return _one(open_asks, ask_id)


def _check_room(others: list[Ask], ask: Ask) -> None:
    """Raise QuotaExceeded if a question would exceed a limit of its owner's open questions."""
    limit = ""
    if len(others) >= MAX_OPEN:
        limit = f"{MAX_OPEN} open questions per owner"
    elif ask.asker is not None:
        same_workspace = [
            one for one in others if one.asker is not None and one.workspace == ask.workspace
        ]
        if sum(one.asker == ask.asker for one in others) >= MAX_OF_ASKER:
            limit = f"{MAX_OF_ASKER} open questions of one API key or box"
        elif ask.workspace is not None and len(same_workspace) >= MAX_OF_WORKSPACE:
            limit = (
                f"{MAX_OF_WORKSPACE} open questions of keys and boxes in workspace {ask.workspace}"
            )
    if limit:
        raise QuotaExceeded(
            f"limit reached: {limit}; wait until the owner answers one of them "
            "(asks answer ID TEXT); see: asks ls"
        )


def _matches(asks: list[Ask], ask_id: str) -> list[Ask]:
    return [ask for ask in asks if ask_id and ask.id.startswith(fold(ask_id))]


def _one(asks: list[Ask], ask_id: str) -> Ask:
    """Return the question whose id starts with `ask_id`. Raises NotFound, Ambiguous."""
    matches = _matches(asks, ask_id)
    if not matches:
        raise NotFound(f"no open question {shown(ask_id)}; see: asks ls")
    if len(matches) > 1:
        ids = ", ".join(ask.id for ask in matches[:10])
        raise Ambiguous(f"question {shown(ask_id)} is ambiguous: {ids}")
    return matches[0]


def _check_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise BadRequest(f"the wait for an answer must be 0 to {MAX_WAIT_S} seconds")
