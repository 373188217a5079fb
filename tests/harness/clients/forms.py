"""The two forms of the Python client, called in the same way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from boxd_client import AsyncClient, Client, RetryPolicy

QUICK = RetryPolicy(attempts=3, first=0.01, longest=2.0)
KEY = "svc_test"


Form = Callable[..., Any]
"""Calls a client of one form: `form(url, call)` returns what `call` returns for the client.

A stream gives the list of its events. `timeout` and `key` are those of the client.
"""


def blocking(
    url: str, call: Callable[[Any], Any], *, timeout: float = 10.0, key: str = KEY
) -> object:
    """Call `Client`."""
    with Client(url, key, timeout=timeout, retries=QUICK) as client:
        value = call(client)
        return list(value) if hasattr(value, "__next__") else value


def concurrent(
    url: str, call: Callable[[Any], Any], *, timeout: float = 10.0, key: str = KEY
) -> object:
    """Call `AsyncClient`."""

    async def run() -> object:
        async with AsyncClient(url, key, timeout=timeout, retries=QUICK) as client:
            value = call(client)
            if hasattr(value, "__anext__"):
                return [event async for event in value]
            return await value if inspect.isawaitable(value) else value

    return asyncio.run(run())
