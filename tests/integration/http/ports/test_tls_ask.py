"""`GET /v1/tls-ask` on a real server: yes for preview hosts of boxes, and to the proxy alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.config import Address, Config
from boxd.store.interface import ControlStore
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB, PREVIEW_DOMAIN, serve_web

if TYPE_CHECKING:
    import httpx

    from tests.harness.http.web import Web

DOMAIN = PREVIEW_DOMAIN


async def ask(web: Web, domain: str, **headers: str) -> httpx.Response:
    """The answer to somebody without a key."""
    client = web.client()
    del client.headers["authorization"]
    return await client.get("/v1/tls-ask", params={"domain": domain}, headers=headers)


async def status(web: Web, domain: str) -> int:
    """The status of the answer."""
    return (await ask(web, domain)).status_code


async def test_hosts_of_boxes_of_all_owners(previews: Web) -> None:
    box = await previews.operations.boxes.up(ALICE, "my-app")
    await previews.operations.boxes.up(BOB, "ws1/other")
    for label in ("my-app-3000", f"{box.id}-1", f"{box.id[:12]}-65535", "MY-APP-3000", "other-80"):
        answer = await ask(previews, f"{label}.{DOMAIN}")
        assert (answer.status_code, answer.json()) == (200, {"ok": True}), label
    await previews.operations.boxes.remove(ALICE, "my-app")
    assert await status(previews, f"my-app-3000.{DOMAIN}") == 403
    assert await status(previews, f"{box.id}-1.{DOMAIN}") == 403


async def test_a_sleeping_box_has_its_host_and_sleeps_on(previews: Web) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    await previews.lifecycle.close(stop_boxes=True)
    assert await status(previews, f"web-80.{DOMAIN}") == 200
    assert [box.state for box in await previews.operations.boxes.list_boxes(ALICE)] == ["suspended"]


@pytest.mark.parametrize(
    "host",
    [
        *("", DOMAIN, f".{DOMAIN}", f"web.{DOMAIN}", f"web-0.{DOMAIN}", f"web-080.{DOMAIN}"),
        *(f"a.web-80.{DOMAIN}", f"web-65536.{DOMAIN}", f"absent-80.{DOMAIN}", "web-80.test"),
        *(f"web-80{DOMAIN}", f"web-80.{DOMAIN}.evil", f"web-80.{DOMAIN}/", f" web-80.{DOMAIN}"),
        *(f"ws1/web-80.{DOMAIN}", "web-80", f"we\u00df-80.{DOMAIN}"),
    ],
)
async def test_other_hosts(previews: Web, host: str) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    answer = await ask(previews, host)
    assert answer.status_code == 403
    assert error_of(answer).startswith("no certificate for this host")


async def test_the_question_must_be_one(previews: Web) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    client = previews.client()
    for query in ("", f"domain=web-80.{DOMAIN}&domain=evil", f"Domain=web-80.{DOMAIN}"):
        assert (await client.get(f"/v1/tls-ask?{query}")).status_code == 403


async def test_whom_the_proxy_asks_for_gets_no_answer(previews: Web) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    host = f"web-80.{DOMAIN}"
    outside = await ask(previews, host, **{"x-forwarded-for": "192.0.2.7"})
    assert outside.status_code == 403
    assert outside.content == (await ask(previews, f"absent-80.{DOMAIN}")).content


async def test_only_the_proxy_gets_an_answer() -> None:
    config = Config(
        api_addr=Address("127.0.0.1", 0),
        preview_domain=DOMAIN,
        trusted_proxy="192.0.2.1,127.0.0.9",
    )
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with serve_web(Path(name), config=config) as web:
            await web.operations.boxes.up(ALICE, "web")
            assert (await ask(web, f"web-80.{DOMAIN}")).status_code == 403
            claimed = await ask(web, f"web-80.{DOMAIN}", **{"x-forwarded-for": "192.0.2.1"})
            assert claimed.status_code == 403


async def test_without_a_preview_domain_there_are_no_certificates(web: Web) -> None:
    await web.operations.boxes.up(ALICE, "web")
    assert await status(web, f"web-80.{DOMAIN}") == 403


async def test_nothing_is_asked_of_the_store(
    previews: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    await previews.operations.boxes.up(ALICE, "web")
    methods = [name for name in dir(ControlStore) if not name.startswith("_")]
    assert "boxes" in methods

    def refuse(*_arguments: object, **_options: object) -> None:
        pytest.fail("the control store was asked")

    with monkeypatch.context() as patch:
        for name in methods:
            patch.setattr(previews.store, name, refuse)
        assert await status(previews, f"web-80.{DOMAIN}") == 200
