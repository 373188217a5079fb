"""The agent of an owner: kept with its token sealed, and shown without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest, Forbidden, NotFound
from boxd.secret import Secret
from tests.harness.simulation.world import ALICE, BOB

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

CANARY = Secret("canary-agent-token")


async def test_an_agent_is_kept_replaced_and_forgotten(world: World) -> None:
    ops = world.operations
    with pytest.raises(NotFound, match="agent set"):
        await ops.agents.show_agent(ALICE)
    for command in ("one", "two --print"):
        await ops.agents.set_agent(
            ALICE, command=command, env="TOKEN", output="jsonl", token=CANARY
        )
    agent = await ops.agents.show_agent(ALICE)
    assert (agent.command, agent.env, agent.format) == ("two --print", "TOKEN", "jsonl")
    assert CANARY.reveal().encode() not in agent.sealed
    assert CANARY.reveal() not in repr(agent)
    with pytest.raises(NotFound):
        await ops.agents.show_agent(BOB)
    await ops.agents.remove_agent(ALICE)
    with pytest.raises(NotFound):
        await ops.agents.remove_agent(ALICE)


@pytest.mark.parametrize(
    ("command", "env", "output", "token"),
    [
        (" ", "T", "text", "x"),
        ("a\0b", "T", "text", "x"),
        ("a" * 4097, "T", "text", "x"),
        ("a", "LD_PRELOAD", "text", "x"),
        ("a", "T", "xml", "x"),
        ("a", "T", "text", ""),
    ],
)
async def test_what_makes_no_sense_is_refused(
    world: World, command: str, env: str, output: str, token: str
) -> None:
    with pytest.raises(BadRequest):
        await world.operations.agents.set_agent(
            ALICE, command=command, env=env, output=output, token=Secret(token)
        )
    assert await world.store.agent(ALICE.owner) is None


async def test_a_scoped_key_cannot_read_or_change_it(world: World) -> None:
    key = replace(ALICE, via="api_key", scope="ws1")
    with pytest.raises(Forbidden):
        await world.operations.agents.set_agent(
            key, command="a", env="T", output="text", token=CANARY
        )
    with pytest.raises(Forbidden):
        await world.operations.agents.show_agent(key)
