"""A canvas whose time is over: who subscribed is told, though nobody does anything."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.harness.http.mcp import talk

if TYPE_CHECKING:
    from tests.harness.http.mcp import Talk
    from tests.harness.http.web import Web

SURFACES = "svc://surfaces"
PLAN = "svc://surfaces/plan"


async def test_the_end_of_a_canvas_is_pushed(web: Web) -> None:
    async with talk(web) as client:
        for uri in (SURFACES, PLAN):
            await client.result("resources/subscribe", {"uri": uri})
        await client.call("surface_render", id="plan", content="# Plan", ttl_s=1)
        # It may be over before its making is told of: then both are told at once.
        while (seen := len(client.updates())) == 0 or await _surfaces(client):
            await client.until_told(partial(_more_than, client, seen))
        assert set(client.updates()) == {SURFACES, PLAN}


def _more_than(client: Talk, seen: int) -> bool:
    return len(client.updates()) > seen


async def _surfaces(client: Talk) -> list[dict[str, Any]]:
    found = await client.result("resources/read", {"uri": SURFACES})
    listed: list[dict[str, Any]] = json.loads(found["contents"][0]["text"])["surfaces"]
    return listed
