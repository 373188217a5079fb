"""Starting and stopping the HTTP listener inside a running loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from boxd.config import Address, Config
from boxd.errors import Unavailable
from boxd.http.server import serve
from boxd.http.server.serve import ApiServer
from tests.harness.http.commands import header, marked, open_exec
from tests.harness.http.web import serve_web
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web


async def test_a_taken_port_is_named_with_a_remedy(web: Web) -> None:
    second = ApiServer(web.api, Config(api_addr=web.address))
    with pytest.raises(Unavailable, match=rf"{web.address}.*--api-addr"):
        await second.start()
    await second.close()


async def test_without_an_address_nothing_is_served(web: Web) -> None:
    with pytest.raises(Unavailable, match="--api-addr"):
        await ApiServer(web.api, Config()).start()


async def test_ipv6(web: Web) -> None:
    server = ApiServer(web.api, Config(api_addr=Address("::1", 0)))
    address = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/healthz")).status_code == 200
    await server.close()


async def test_signal_handlers_are_left_alone(web: Web) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = ApiServer(web.api, Config(api_addr=Address("127.0.0.1", 0)))
    await server.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.close()
    await server.close()


async def test_small_answers_do_not_wait_for_acknowledgements(web: Web) -> None:
    accepted = next(iter(web.server._server.servers)).sockets[0]  # type: ignore[union-attr]  # started
    assert accepted.proto == socket.IPPROTO_TCP


async def test_stopping_ends_what_does_not_end_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "GRACE_S", 1)
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name)) as web:
            await _stop_under_load(web)


async def _stop_under_load(web: Web) -> None:
    body = header("echo begun; sleep 1000", env={"EXEC_MARK": "stopped"})
    reader, writer = await open_exec(web, body)
    await asyncio.wait_for(reader.readuntil(b"event: stdout"), 20)
    idle_reader, idle_writer = await web.connect()
    await web.server.close()
    await until(lambda: not marked("stopped"))
    assert b"event: exit" not in await asyncio.wait_for(reader.read(), 10)
    assert await asyncio.wait_for(idle_reader.read(), 10) == b""
    with pytest.raises(ConnectionRefusedError):
        await web.connect()
    writer.close()
    idle_writer.close()
