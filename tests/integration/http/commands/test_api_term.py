"""Terminals over WebSocket, run by the real agent behind a real tunnel."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from boxd.boxes.state.requests import BoxAccess
from boxd.config import Address
from boxd.http.server import serve, websocket_protocol
from tests.harness.agents.given import give
from tests.harness.http.commands import marked
from tests.harness.http.mcp import talk
from tests.harness.http.terminals import opened, ping_often, protocol_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.http.websocket import BINARY, TEXT, ask, connected, handshake
from tests.harness.wait import until

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from tests.harness.http.web import Web

CLIENT_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHtRwsqnqZqTtHFUUd1VbzwXlyfdIVJO5OWC4Ft44yVS"


async def refused(web: Web, path: str, *lines: str) -> tuple[int, str]:
    """Status and text of a refusal, which must be a whole JSON answer."""
    status, head, connection = await ask(web, handshake(path, *lines))
    assert b"content-type: application/json" in head.lower()
    assert b"connection: close" in head.lower()
    assert b"\r\ndate: " in head.lower()
    assert b"\r\nserver: " not in head.lower()
    document = json.loads(await asyncio.wait_for(connection.reader.read(), 20))
    connection.close()
    assert list(document) == ["error"]
    return status, document["error"]


async def test_keys_go_in_and_output_comes_back(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    url = f"ws://{web.address}/v1/boxes/web/term"
    async with connect(url, additional_headers={"Authorization": f"Bearer {web.key}"}) as socket:
        await socket.send(b"echo $TERM; stty size; shopt -q login_shell && echo a''login; exit 7\n")
        output = b"".join([part async for part in socket if isinstance(part, bytes)])
        assert b"xterm-256color\r\n24 80\r\nalogin\r\n" in output.replace(b"\x1b[?2004l\r", b"")
        assert (socket.close_code, socket.close_reason) == (1000, "exit 7")
    assert (await web.operations.boxes.list_boxes(ALICE))[0].attached == 0


async def test_it_resizes_clamps_and_ignores_other_texts(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web, "&cols=100&rows=30")

    async def size_after(text: str) -> bytes:
        terminal.send(TEXT, text.encode())
        terminal.send(BINARY, b"echo $(stty size).\n")
        return (await terminal.until(b".\r\n")).strip()

    assert await size_after("hello") == b"30 100."
    assert await size_after('{"resize": {"cols": 132, "rows": 50}}') == b"50 132."
    assert await size_after('{"resize": {"cols": 0, "rows": 9999999999999}}') == b"1000 1."
    for ignored in (
        '{"resize": {"cols": true, "rows": 5}}',
        '{"resize": {"cols": "5", "rows": 5}}',
        '{"resize": {"cols": 5}}',
        '{"resize": [5, 5]}',
        "[" * 20_000,
        "[]",
        "7",
        "",
    ):
        assert await size_after(ignored) == b"1000 1."
    terminal.close()


async def test_sizes_of_the_query_are_clamped_or_refused(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web, "&cols=5000&rows=0")
    terminal.send(BINARY, b"echo $(stty size).\n")
    assert await terminal.until(b".\r\n") == b"1 1000.\r\n"
    terminal.close()
    for query in ("cols=-1", "rows=x", "cols=", "rows=1e3"):
        status, text = await refused(web, f"/v1/boxes/web/term?key={web.key}&{query}")
        assert status == 400
        assert "from 1 to 1000" in text


async def test_each_socket_has_a_shell_of_its_own(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    first, second = await opened(web), await opened(web)
    first.send(BINARY, b"X=1; echo x=$X.\n")
    second.send(BINARY, b"echo x=$X.\n")
    assert b"x=1." in await first.until(b".\r\n")
    assert b"x=." in await second.until(b".\r\n")
    (box,) = await web.operations.boxes.list_boxes(ALICE)
    assert (box.attached, box.why) == (2, {"terminal": 2})
    for terminal in (first, second):
        terminal.close()
    await until(lambda: web.lifecycle.attachments.count(box.id) == 0)


async def test_what_an_attachment_brings_is_in_its_environment(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    await web.operations.boxes.up(ALICE, "web")
    give(monkeypatch, web.operations, {"GIVEN": "a secret"})
    terminal = await opened(web)
    terminal.send(BINARY, b'echo "[$GIVEN]"\n')
    assert b"[a secret]" in await terminal.until(b"]\r\n")
    terminal.close()


async def test_a_client_that_goes_leaves_nothing_behind(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web)
    terminal.send(BINARY, b"export EXEC_MARK=term; sh -c 'echo be\"\"gun; sleep 999; :'\n")
    await terminal.until(b"begun\r\n")
    assert marked("term")
    terminal.close()
    await until(lambda: not marked("term"))
    await until(lambda: web.lifecycle.attachments.held() == set())
    assert (await web.operations.boxes.list_boxes(ALICE))[0].attached == 0


async def test_a_client_that_closes_gets_its_close_back(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    async with connect(f"ws://{web.address}/v1/boxes/web/term?key={web.key}") as socket:
        await socket.recv()
        await socket.close(1000, "bye")
        assert socket.close_code == 1000
    await until(lambda: web.lifecycle.attachments.held() == set())


async def test_refusals_before_the_upgrade_have_their_real_status(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    await web.operations.boxes.up(ALICE, "ws1/web")
    shown = f"X-Api-Key: {web.key}"
    scoped = await web.new_key(scope="ws1")
    other = await web.new_key(BOB)
    path = "/v1/boxes/web/term"
    assert await refused(web, path) == (401, "invalid API key")
    assert await refused(web, f"{path}?key=svc_" + "0" * 40) == (401, "invalid API key")
    assert (await refused(web, path, "Authorization: Bearer x", shown))[0] == 401
    assert (await refused(web, "/v1/boxes/nowhere/term", shown))[0] == 404
    assert (await refused(web, f"{path}?key={other}"))[0] == 404
    assert (await refused(web, f"{path}?key={scoped}&ws=ws2"))[0] == 403
    assert (await refused(web, f"/v1/boxes/we_b/term?key={web.key}"))[0] == 400
    assert (await refused(web, f"/v1/boxes/%FF/term?key={web.key}"))[0] == 400
    assert (await refused(web, f"/v1/boxes?key={web.key}"))[0] == 404
    assert [box.name for box in await web.operations.boxes.list_boxes(ALICE, everywhere=True)] == [
        "web",
        "web",
    ]


async def test_a_box_that_is_not_there_is_never_made(web: Web) -> None:
    assert (await refused(web, f"/v1/boxes/web/term?key={web.key}"))[0] == 404
    assert await web.operations.boxes.list_boxes(ALICE, everywhere=True) == []


async def test_boxes_of_workspaces(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "ws1/web")
    (view,) = await web.operations.boxes.list_boxes(ALICE, everywhere=True)
    scoped = await web.new_key(scope="ws1")
    for path in (
        f"web/term?ws=ws1&key={web.key}",
        f"ws1%2Fweb/term?key={web.key}",
        f"{view.id}/term?key={web.key}",
        f"{view.id[:12]}/term?key={web.key}",
        f"web/term?key={scoped}",
    ):
        terminal = await connected(web, f"/v1/boxes/{path}")
        terminal.send(BINARY, b"exit\n")
        assert (await terminal.until_close())[1:] == (1000, "exit 0")
        terminal.close()
    assert (await refused(web, f"/v1/boxes/web/term?key={web.key}"))[0] == 404


async def test_a_confidential_box_points_to_the_relay(web: Web) -> None:
    async with web.operations.boxes.attach(
        ALICE, BoxAccess("quiet", kind="spec", why="test", relay=CLIENT_KEY)
    ):
        status, text = await refused(web, f"/v1/boxes/quiet/term?key={web.key}")
    assert status == 403
    assert "ssh -J jump@" in text


async def test_pointers_name_the_front_door_where_it_has_a_name(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.operations.texts, "_ssh_host", Address("boxes.example.net", 2222))
    unknown = await web.client().get("/v1/boxes/nothing/term")
    assert unknown.json()["error"].endswith("; see: ssh -p 2222 cli@boxes.example.net ls")
    way = "ssh -J jump@boxes.example.net:2222 root@quiet"
    client = web.client()
    async with web.operations.boxes.attach(
        ALICE, BoxAccess("quiet", kind="spec", why="test", relay=CLIENT_KEY)
    ):
        assert way in (await refused(web, f"/v1/boxes/quiet/term?key={web.key}"))[1]
        text = {"content-type": "text/plain"}
        ran = await client.post("/v1/exec/quiet", content=b"id", headers=text)
        assert way in ran.json()["error"]
        assert way in (await client.get("/v1/boxes/quiet/proxy/80/")).json()["error"]
    async with talk(web) as plane:
        assert way in await plane.refusal("box_exec", box="quiet", cmd="id")


async def test_without_an_upgrade_it_says_what_it_is(web: Web) -> None:
    client = web.client()
    assert (await client.get("/v1/boxes/web/term")).status_code == 404
    await web.operations.boxes.up(ALICE, "web")
    answer = await client.get("/v1/boxes/web/term")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert list(answer.json()) == ["error"]
    assert (await client.head("/v1/boxes/web/term")).status_code == 426
    assert (await client.post("/v1/boxes/web/term")).headers["allow"] == "GET, HEAD"
    assert (await web.client("svc_no").get("/v1/boxes/web/term")).status_code == 401


async def test_ends_have_their_codes(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    signalled = await opened(web)
    signalled.send(BINARY, b"kill -KILL $$\n")
    assert (await signalled.until_close())[1:] == (1000, "exit 137")
    stripped = await web.new_key(name="short")
    revoked = await connected(web, f"/v1/boxes/web/term?key={stripped}")
    await web.operations.keys.remove_key(ALICE, "short")
    assert (await revoked.until_close())[1] == 1008
    removed = await opened(web)
    await web.operations.boxes.remove(ALICE, "web")
    assert (await removed.until_close())[1:] == (1001, "box web was removed")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that waits for its clients for ever; to be asked for before `web`."""
    monkeypatch.setattr(serve, "GRACE_S", 3600)
    monkeypatch.setattr(websocket_protocol, "CLOSE_S", 3600)


async def test_a_stop_is_1012_at_once(patient: None, web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web)
    terminal.send(BINARY, b"EXEC_MARK=stop exec sleep 1000\n")
    await until(lambda: marked("stop"))
    stopping = asyncio.create_task(web.server.close())
    assert (await terminal.until_close())[1] == 1012
    assert await asyncio.wait_for(terminal.reader.read(), 30) == b""
    terminal.close()
    await asyncio.wait_for(stopping, 30)
    await until(lambda: not marked("stop"))


async def test_a_frame_of_64_kib_passes_and_more_is_1009(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web)
    terminal.send(BINARY, b"stty raw; echo go''od; head -c 65536 | wc -c; echo do''ne\n")
    await terminal.until(b"good")
    terminal.send(BINARY, b"x" * 65_536)
    assert b"65536" in await terminal.until(b"done")
    terminal.send(BINARY, b"x" * 65_537)
    assert (await terminal.until_close())[1] == 1009
    terminal.close()
    await until(lambda: web.lifecycle.attachments.held() == set())


async def test_a_client_that_does_not_read_holds_the_box_back(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    terminal = await opened(web)
    terminal.hold()
    terminal.send(BINARY, b"yes\n")
    protocol = protocol_of(web)
    await until(lambda: protocol.transport.get_write_buffer_size() > 256 * 1024)
    held = protocol.transport.get_write_buffer_size()
    assert held <= 512 * 1024
    terminal.send(BINARY, b"\x03echo sto''pped\n")
    terminal.go_on()
    assert b"stopped" in await terminal.until(b"stopped")
    terminal.close()


async def test_a_program_that_does_not_read_holds_the_client_back(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    url = f"ws://{web.address}/v1/boxes/web/term?key={web.key}"
    async with connect(url, close_timeout=0.1) as client:
        await client.send(b"stty raw; EXEC_MARK=deaf exec sleep 1000\n")
        await until(lambda: marked("deaf"))
        protocol = protocol_of(web)
        sending = asyncio.create_task(_send_on(client))
        await until(lambda: protocol.read_paused)
        # Its pongs are not read now, and yet it is not cut.
        ping_often(protocol, patience=0.05)
        before = protocol.pending_ping_payload
        await until(lambda: protocol.pending_ping_payload not in (None, before))
        assert protocol._waiting <= 512 * 1024
        assert len(protocol._unparsed) <= 512 * 1024
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert marked("deaf")
        client.transport.abort()
    # Its end is seen when something is sent to it: the next ping but one.
    await until(lambda: not marked("deaf"))


async def _send_on(client: ClientConnection) -> None:
    while True:
        await client.send(b"x" * 65_536)


async def test_no_key_is_in_any_line_of_the_log(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    await web.operations.boxes.up(ALICE, "web")
    with caplog.at_level(logging.DEBUG):
        for name in ("uvicorn.error", "boxd.http.frames"):
            caplog.set_level(logging.DEBUG, name)
        terminal = await connected(web, f"/v1/boxes/web/term?key={web.key}", f"X-A: {web.key}")
        terminal.send(BINARY, b"exit\n")
        await terminal.until_close()
        await refused(web, f"/v1/boxes/nowhere/term?key={web.key}")
        url = f"ws://{web.address}/v1/boxes/none/term?key={web.key}"
        with pytest.raises(InvalidStatus):
            await connect(url)
    assert "/v1/boxes/{box}/term" in caplog.text
    lines = [line for line in caplog.text.splitlines() if "websockets.client" not in line]
    assert web.key not in "\n".join(lines)
