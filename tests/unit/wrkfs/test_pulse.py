"""When requests are cut: after the server was away, and only those that were begun before."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.wait import until
from wrkfs import pulse
from wrkfs.pulse import Pulse


class Server:
    """Answers probes, or not."""

    def __init__(self) -> None:
        self.away = False
        self.probes = 0
        self.waiting = True
        self.cuts: list[float] = []
        self.pulse = Pulse(self.probe, lambda: self.waiting, self.cuts.append)

    async def probe(self) -> None:
        self.probes += 1
        if self.away:
            raise ConnectionError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PAUSE", 0.001)


async def test_a_server_that_answers_is_only_slow() -> None:
    server = Server()
    server.pulse.look()
    await until(lambda: server.probes == 1)
    await server.pulse.close()
    assert server.cuts == []


async def test_a_server_that_comes_back_cuts_what_was_begun_before() -> None:
    server = Server()
    server.away = True
    server.pulse.look()
    server.pulse.look()
    await until(lambda: server.probes > 3)
    before = asyncio.get_running_loop().time()
    server.away = False
    await until(lambda: server.cuts)
    assert server.cuts[0] >= before
    probes = server.probes
    server.pulse.look()
    await until(lambda: server.probes == probes + 1)
    assert len(server.cuts) == 1
    await server.pulse.close()


async def test_nobody_waits_so_nobody_probes() -> None:
    server = Server()
    server.away = True
    server.pulse.look()
    await until(lambda: server.probes > 1)
    server.waiting = False
    await until(lambda: server.pulse._task is not None and server.pulse._task.done())
    assert server.cuts == []
    await server.pulse.close()
    await server.pulse.close()
