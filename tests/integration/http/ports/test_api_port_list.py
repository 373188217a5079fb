"""The list of ports of a box. Boxes of this fixture have the network of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.http.errors import error_of
from tests.harness.http.portserver import listening
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web


async def _answer(visit: Visit) -> None:
    await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


async def test_a_listening_program_is_listed_with_its_address(web: Web) -> None:
    box = await web.operations.boxes.up(ALICE, "web")
    client = web.client()
    async with listening(_answer) as app:
        ports = {one["port"]: one for one in (await client.get("/v1/boxes/web/ports")).json()}
        port = ports[app.port]
        assert port["address"] == "127.0.0.1"
        assert port["path"] == f"/v1/boxes/{box.id}/proxy/{app.port}/"
        assert (await client.get(port["path"])).content == b"hi"
    ports = {one["port"]: one for one in (await client.get("/v1/boxes/web/ports")).json()}
    assert app.port not in ports


async def test_a_missing_box_has_no_ports(web: Web) -> None:
    response = await web.client().get("/v1/boxes/web/ports")
    assert response.status_code == 404
    assert error_of(response).startswith("no box 'web'")
