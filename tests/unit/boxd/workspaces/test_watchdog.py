"""The watchdog survives failures. test_pg_role_limits.py tests which connections it ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import asyncpg
import pytest

from boxd.workspaces.watchdog import DatabaseWatchdog, Ended
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.strict_logs import AssertLogs

GOODBYES = [
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.ConnectionDoesNotExistError,
]
"""What a statement ends with that meets the end of its connection, by the moment of that."""


class Restarting(DatabaseWatchdog):
    """Its first look meets a restart of the database."""

    def __init__(self, goodbye: type[Exception]) -> None:
        super().__init__("", tick=0.001)
        self._goodbye = goodbye
        self.looks = 0

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncpg.Connection]:
        yield cast("asyncpg.Connection", None)

    async def _end_overdue(self, connection: asyncpg.Connection) -> list[Ended]:
        del connection
        self.looks += 1
        if self.looks == 1:
            raise self._goodbye("the server goes down")
        return []


@pytest.mark.parametrize("goodbye", GOODBYES)
async def test_a_look_that_meets_a_restart_is_not_the_last(
    goodbye: type[Exception], assert_logs: AssertLogs
) -> None:
    watchdog = Restarting(goodbye)
    with assert_logs("the database watchdog cannot work"):
        watchdog.start()
        await until(lambda: watchdog.looks > 2)
        await watchdog.close()
