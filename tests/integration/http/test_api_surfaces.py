"""`/v1/surfaces` on a real server: who may look at which canvas, and that nothing in it can act."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.http.routes import page
from boxd.operations.canvases import MAX_CONTENT
from tests.harness.http import hostile_markup
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    import httpx

    from tests.harness.http.web import Web

SCOPED = replace(ALICE, scope="ws1")
INERT = ("default-src 'none'", "sandbox", "base-uri 'none'", "form-action 'none'")


def check_inert(response: httpx.Response) -> None:
    """Nothing in the body of a page can act, and the browser is told to let nothing act."""
    policy = response.headers["content-security-policy"]
    assert all(word in policy for word in INERT)
    assert "script-src" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    hostile_markup.check_inert(response.text.partition("<body>")[2])


async def test_canvases_are_listed_and_shown(web: Web) -> None:
    ops = web.operations
    await ops.canvases.render_canvas(ALICE, "plan", "# One\n\n| a |\n|---|\n| b |", title="A & <b>")
    (listed,) = (await web.client().get("/v1/surfaces")).json()
    assert (listed["id"], listed["title"], listed["uri"]) == (
        "plan",
        "A & <b>",
        "svc://surfaces/plan",
    )
    assert "content" not in listed
    shown = await web.client().get("/v1/surfaces/plan")
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>A &amp; &lt;b&gt;</title>" in shown.text
    assert "<h1>One</h1>" in shown.text
    assert "<td>b</td>" in shown.text
    check_inert(shown)
    raw = await web.client().get("/v1/surfaces/plan?raw")
    assert raw.text == "# One\n\n| a |\n|---|\n| b |"
    assert raw.headers["content-type"] == "text/markdown; charset=utf-8"
    assert "sandbox" in raw.headers["content-security-policy"]
    head = await web.client().head("/v1/surfaces/plan")
    assert (head.status_code, head.content) == (200, b"")


async def test_nothing_in_a_page_can_act(web: Web) -> None:
    hostile = "\n\n".join(hostile_markup.HOSTILE)
    for mime in ("text/html", "text/markdown", "text/plain", "image/svg+xml"):
        await web.operations.canvases.render_canvas(ALICE, "x", hostile, mime=mime)
        check_inert(await web.client().get("/v1/surfaces/x"))
        raw = await web.client().get("/v1/surfaces/x?raw")
        assert raw.text == hostile
        assert raw.headers["content-type"].startswith(mime)
        assert "sandbox" in raw.headers["content-security-policy"]
        assert "default-src 'none'" in raw.headers["content-security-policy"]


async def test_json_and_text_are_shown_as_they_are(web: Web) -> None:
    for content, mime in (('{"a": "<b>"}', "application/json"), ("<b> & é", "text/plain")):
        await web.operations.canvases.render_canvas(ALICE, "x", content, mime=mime)
        shown = await web.client().get("/v1/surfaces/x")
        assert (
            content.replace("&", "&amp;")
            .replace("<", "&lt;")
            .replace(">", "&gt;")
            .replace('"', "&quot;")
            in shown.text
        )


async def test_a_document_that_makes_gigabytes_is_shown_as_its_source(web: Web) -> None:
    """Formatting that is reopened in each paragraph: the tree of it has 250 million nodes."""
    bomb = "<p>" + "".join(f"<b id=a{i}>" for i in range(12_000)) + "</p>" + "<p>x</p>" * 9_000
    assert len(bomb) < MAX_CONTENT
    await web.operations.canvases.render_canvas(ALICE, "bomb", bomb, mime="text/html")
    health = asyncio.create_task(web.client().get("/healthz"))
    shown = await web.client().get("/v1/surfaces/bomb")
    assert (await health).status_code == 200
    assert "too complex" in shown.text
    assert "&lt;b id=a1&gt;" in shown.text
    check_inert(shown)


async def test_one_that_takes_too_long_is_shown_as_its_source(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RENDER_S", 0.0)
    await web.operations.canvases.render_canvas(ALICE, "x", "# One")
    assert "<pre># One</pre>" in (await web.client().get("/v1/surfaces/x")).text


async def test_who_looks_at_many_at_once_keeps_no_other_owner_waiting(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, hold = web.client(await web.new_key(BOB)), asyncio.Event()
    shown: list[bytes] = []

    async def sanitised(_kind: str, content: bytes, _run: object) -> str:
        shown.append(content)
        if content == b"alice":
            await hold.wait()
        return "clean"

    monkeypatch.setattr(page, "_sanitised", sanitised)
    await web.operations.canvases.render_canvas(ALICE, "x", "alice")
    await web.operations.canvases.render_canvas(BOB, "x", "bob")
    client = web.client()
    async with asyncio.TaskGroup() as many:
        for _ in range(2 * page.AT_ONCE):
            many.create_task(client.get("/v1/surfaces/x"))
        await until(lambda: shown)
        try:
            async with asyncio.timeout(30):
                assert "clean" in (await bob.get("/v1/surfaces/x")).text
            assert shown == [b"alice", b"bob"]
        finally:
            hold.set()


async def test_scopes_and_owners_are_kept_apart(web: Web) -> None:
    ops = web.operations
    scoped = web.client(await web.new_key(scope="ws1"))
    bob = web.client(await web.new_key(BOB))
    await ops.canvases.render_canvas(ALICE, "plan", "of the account", mime="text/plain")
    assert (await scoped.get("/v1/surfaces/plan")).status_code == 404
    assert (await scoped.get("/v1/surfaces")).json() == []
    assert (await bob.get("/v1/surfaces/plan")).status_code == 404
    await ops.canvases.render_canvas(SCOPED, "plan", "of ws1", mime="text/plain")
    assert (await scoped.get("/v1/surfaces/plan?raw")).text == "of ws1"
    assert (await web.client().get("/v1/surfaces/plan?raw")).text == "of the account"
    assert (await web.client().get("/v1/surfaces/plan?raw&ws=ws1")).text == "of ws1"
    refused = await scoped.get("/v1/surfaces/plan?ws=ws2")
    assert (refused.status_code, "ws1" in refused.json()["error"]) == (403, True)
    assert (await bob.get("/v1/surfaces/plan?ws=ws1")).status_code == 404
    assert (await web.client().get("/v1/surfaces?ws=A!")).status_code == 400


async def test_a_key_in_the_query_is_no_credential_here(web: Web) -> None:
    await web.operations.canvases.render_canvas(ALICE, "plan", "text")
    client = web.client()
    del client.headers["authorization"]
    for path in ("/v1/surfaces", "/v1/surfaces/plan"):
        assert (await client.get(f"{path}?key={web.key}")).status_code == 401
    plain = {"x-api-key": web.key}
    assert (await client.get("/v1/surfaces/plan", headers=plain)).status_code == 200


@pytest.mark.parametrize("path", ["absent", "%2e%2e", "a%2Fb", "%ff", "A"])
async def test_what_is_not_there_is_404(web: Web, path: str) -> None:
    response = await web.client().get(f"/v1/surfaces/{path}")
    assert response.status_code in (400, 404)
    assert list(response.json()) == ["error"]
