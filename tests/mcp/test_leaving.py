"""Clients that leave a WebSocket early: nothing of their conversation stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness.http.rawhttp import Request, ask
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web


@pytest.mark.timeout(60)
async def test_a_client_that_leaves_before_its_first_message(web: Web) -> None:
    tasks = len(asyncio.all_tasks())
    lines = (("Authorization", f"Bearer {web.key}"),)
    answer = await ask(web.address.host, web.address.port, Request("WS", "/v1/mcp", lines))
    assert answer.status == 101
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
