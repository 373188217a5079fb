"""The agent of an owner: a program that runs tasks in boxes, and its token."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from boxd.authz import Action, require
from boxd.errors import BadRequest, NotFound
from boxd.model.secret import Agent, Format
from boxd.names.variable import check_value, parse_variable
from boxd.names.words import shown

if TYPE_CHECKING:
    from boxd.clock import Clock
    from boxd.operations.shared.vault import Vault
    from boxd.principal import Principal
    from boxd.secret import Secret
    from boxd.store.interface import ControlStore

MAX_COMMAND = 4096
"""Maximum size of the command, in bytes."""


class AgentOperations:
    """Records, shows and removes the agent of an owner. Holds no state."""

    def __init__(self, store: ControlStore, vault: Vault, clock: Clock) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock

    async def set_agent(
        self, p: Principal, *, command: str, env: str, output: str, token: Secret
    ) -> Agent:
        """Record the agent; it replaces an older one. `env` is the variable for its token.

        `output` is the format of its stdout: `text` or `jsonl`. Raises BadRequest, TooLarge.
        """
        require(p, Action.CONFIGURE_AGENT)
        if not command.strip() or "\0" in command:
            raise BadRequest("the command of the agent is missing; for example --cmd 'my-agent -p'")
        if len(command.encode("utf-8", "surrogatepass")) > MAX_COMMAND:
            raise BadRequest(f"the command of the agent is longer than {MAX_COMMAND} bytes")
        formats: dict[str, Format] = {one: one for one in get_args(Format)}
        if output not in formats:
            raise BadRequest(f"unknown format {shown(output)}; known: {', '.join(formats)}")
        env = parse_variable(env, "variable")
        check_value(token, "token")
        sealed = self._vault.seal_token(p.owner, token)
        agent = Agent(p.owner, command, env, formats[output], sealed, self._clock.now())
        await self._store.put_agent(agent)
        return agent

    async def show_agent(self, p: Principal) -> Agent:
        """Return the agent, without its token. Raises NotFound."""
        require(p, Action.CONFIGURE_AGENT)
        agent = await self._store.agent(p.owner)
        if agent is None:
            raise NotFound("no agent is set; see: agent set")
        return agent

    async def remove_agent(self, p: Principal) -> Agent:
        """Remove the agent and its token, and return it. Raises NotFound."""
        agent = await self.show_agent(p)
        await self._store.remove_agent(p.owner)
        return agent
