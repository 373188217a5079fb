"""Secrets, agents and asks of ControlStore in memory; see `memory`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import Conflict, NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.ask import Ask
    from boxd.model.secret import Agent, StoredSecret, Tier


class MemorySecrets:
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: dict[tuple[str, str, str, str], StoredSecret] = {}
        self._agents: dict[str, Agent] = {}
        self._asks: dict[str, Ask] = {}

    async def put_secret(self, secret: StoredSecret) -> None:
        """See ControlStore."""
        place = (secret.owner, secret.tier, secret.workspace or "", secret.name)
        self._secrets[place] = secret

    async def secrets(self, owner: str) -> list[StoredSecret]:
        """See ControlStore."""
        return [one for place, one in sorted(self._secrets.items()) if place[0] == owner]

    async def remove_secret(self, owner: str, tier: Tier, workspace: str | None, name: str) -> None:
        """See ControlStore."""
        self._secrets.pop((owner, tier, workspace or "", name), None)

    async def put_agent(self, agent: Agent) -> None:
        """See ControlStore."""
        self._agents[agent.owner] = agent

    async def agent(self, owner: str) -> Agent | None:
        """See ControlStore."""
        return self._agents.get(owner)

    async def remove_agent(self, owner: str) -> None:
        """See ControlStore."""
        self._agents.pop(owner, None)

    async def add_ask(self, ask: Ask) -> None:
        """See ControlStore."""
        self._asks.setdefault(ask.id, ask)

    async def asks(self, owner: str) -> list[Ask]:
        """See ControlStore."""
        mine = [ask for ask in self._asks.values() if ask.owner == owner]
        return sorted(mine, key=lambda ask: (ask.created, ask.id))

    async def answer_ask(self, ask_id: str, answer: str, when: datetime) -> Ask:
        """See ControlStore."""
        ask = self._asks.get(ask_id)
        if ask is None:
            raise NotFound("no such question")
        if ask.state(when) != "open":
            raise Conflict(f"the question is already {ask.state(when)}")
        self._asks[ask_id] = replace(ask, answer=answer, answered=when)
        return self._asks[ask_id]

    async def remove_asks(self, before: datetime) -> None:
        """See ControlStore."""
        self._asks = {ask_id: ask for ask_id, ask in self._asks.items() if ask.expires >= before}

    async def remove_asks_of(self, owner: str, workspace: str) -> None:
        """See ControlStore."""
        place = (owner, workspace)
        self._asks = {key: ask for key, ask in self._asks.items() if _place(ask) != place}


def _place(ask: Ask) -> tuple[str, str | None]:
    return ask.owner, ask.workspace
