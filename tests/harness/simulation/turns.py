"""Stores in memory that answer as late as a database: after other tasks had their turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

P = ParamSpec("P")
R = TypeVar("R")


def wait_turns(monkeypatch: pytest.MonkeyPatch, store: object, *methods: str) -> None:
    """Let every other task run once before and after each of these methods.

    Without this, calls that start together run one after the other, so a missing lock of the caller
    stays hidden.
    """
    for name in methods:
        monkeypatch.setattr(store, name, _waiting(getattr(store, name)))


def _waiting(method: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        found = await method(*args, **kwargs)
        await asyncio.sleep(0)
        return found

    return call
