"""Work whose caller may go away."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from boxd.errors import Unavailable
from boxd.mcp.messages.single_cancel import run_with_single_cancel


async def test_what_fails_when_its_caller_has_gone_is_of_no_interest() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            raise Unavailable("the box does not answer")

    caller = asyncio.create_task(run_with_single_cancel(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    await asyncio.sleep(0)  # the loop itself lets go of it
    gc.collect()
    assert complaints == []


async def test_what_fails_is_told_to_its_caller() -> None:
    async def work() -> None:
        raise Unavailable("the box does not answer")

    with pytest.raises(Unavailable):
        await run_with_single_cancel(work())
