"""When requests are sent again: after an outage, and only those that began before its end."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.wait import until
from wrkfs import outage_probe
from wrkfs.outage_probe import OutageProbe


class Server:
    """A server that answers probes while it is up."""

    def __init__(self) -> None:
        self.away = False
        self.probes = 0
        self.waiting = True
        self.cuts: list[float] = []
        self.outage_probe = OutageProbe(self.probe, lambda: self.waiting, self.cuts.append)

    async def probe(self) -> None:
        self.probes += 1
        if self.away:
            raise ConnectionError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_probe, "PAUSE", 0.001)


async def test_a_server_that_answers_is_only_slow() -> None:
    server = Server()
    server.outage_probe.check()
    await until(lambda: server.probes == 1)
    await server.outage_probe.close()
    assert server.cuts == []


async def test_a_server_that_comes_back_cuts_what_was_begun_before() -> None:
    server = Server()
    server.away = True
    server.outage_probe.check()
    server.outage_probe.check()
    await until(lambda: server.probes > 3)
    before = asyncio.get_running_loop().time()
    server.away = False
    await until(lambda: server.cuts)
    assert server.cuts[0] >= before
    probes = server.probes
    server.outage_probe.check()
    await until(lambda: server.probes == probes + 1)
    assert len(server.cuts) == 1
    await server.outage_probe.close()


async def test_nobody_waits_so_nobody_probes() -> None:
    server = Server()
    server.away = True
    server.outage_probe.check()
    await until(lambda: server.probes > 1)
    server.waiting = False
    await until(lambda: server.outage_probe._task is not None and server.outage_probe._task.done())
    assert server.cuts == []
    await server.outage_probe.close()
    await server.outage_probe.close()
