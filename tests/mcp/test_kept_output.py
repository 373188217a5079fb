"""What running commands have said is kept up to a bound of their owner, over all connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.limits.budgets import output as output_budget
from tests.harness.agents.allowances import small_allowances
from tests.harness.http.mcp import Talk, talk
from tests.harness.http.web import BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.web import Web

SAID = 300_000
SIZE = 1_000_000
CALLS = 12


@pytest.fixture
def allowances(monkeypatch: pytest.MonkeyPatch) -> list[output_budget.Allowance]:
    """Those that are made."""
    return small_allowances(monkeypatch, SIZE)


async def test_an_owner_with_many_loud_commands_keeps_no_more_than_that(
    web: Web, allowances: list[output_budget.Allowance], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.05; done"
    cmd = f"head -c {SAID} /dev/zero | tr '\\0' x; echo; echo said; {wait}; echo -n x; echo end"
    async with talk(web) as one, talk(web, modern=True) as other:
        await one.call("box_spawn", spec="dev")
        loud = {"box": "dev", "cmd": cmd, "max_output": 2 * SAID}
        numbers = []
        for number in range(CALLS):
            client = (one, other)[number % 2]
            call = {"name": "box_exec", "arguments": loud, "_meta": {"progressToken": number}}
            numbers.append((client, await client.begin("tools/call", call)))
        for client in (one, other):
            await client.until_told(partial(_have_said, client))
        (watched,) = (found for found in allowances if found.taken)
        assert SIZE * 3 // 4 < watched.taken <= SIZE
        small = await one.call("box_exec", box="dev", cmd="echo ok; echo no >&2")
        assert (small["stdout"], small["stderr"], small["truncated"]) == ("ok\n", "no\n", False)
        await _others_are_not_affected(web)
        gate.touch()
        done = [(await client.answer(number))["result"] for client, number in numbers]
        found = [one["structuredContent"] for one in done]
    assert [one["exit_code"] for one in found] == [0] * CALLS
    assert any(one["truncated"] for one in found)
    for one in found:
        assert one["stdout"].startswith("x" * (output_budget.ALWAYS // 2))
        assert one["stdout"].endswith("xend\n")
        assert ("bytes left out" in one["stdout"]) is one["truncated"]
    assert sum(len(one["stdout"]) for one in found) < SIZE + CALLS * (output_budget.ALWAYS + 50)
    await until(lambda: watched.taken == 0)


def _have_said(client: Talk) -> bool:
    """Whether all that its commands say before the gate opens has been read by the service."""
    progress = (one["params"] for one in client.told if one["method"] == "notifications/progress")
    return len({one["progressToken"] for one in progress if one["message"] == "said"}) == CALLS // 2


async def _others_are_not_affected(web: Web) -> None:
    async with talk(web, await web.new_key(owner=BOB)) as bob:
        await bob.call("box_spawn", spec="dev")
        cmd = f"head -c {SAID} /dev/zero | tr '\\0' y"
        ran = await bob.call("box_exec", box="dev", cmd=cmd, max_output=SAID)
        assert (len(ran["stdout"]), ran["truncated"]) == (SAID, False)
