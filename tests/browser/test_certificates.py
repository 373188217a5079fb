"""The shipped Caddyfile with Debian's Caddy: who gets a certificate, and what passes through."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.harness.http.caddy import API_HOST
from tests.harness.http.web import ALICE, BOB, PREVIEW_DOMAIN
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.site import Site


async def test_a_preview_host_of_a_box_gets_a_certificate_of_its_own(site: Site) -> None:
    box_id = await site.box("my-app")
    for label in ("my-app-3000", f"{box_id[:12]}-3000", f"{box_id}-1"):
        host = f"{label}.{PREVIEW_DOMAIN}"
        assert await site.caddy.handshake(host) == (host,)
    other = await site.web.operations.boxes.up(BOB, "theirs")
    host = f"{other.id}-80.{PREVIEW_DOMAIN}"
    assert await site.caddy.handshake(host) == (host,)


@pytest.mark.parametrize("label", ["absent-3000", "my-app", "my-app-0", "a.my-app-3000", "www"])
async def test_other_hosts_get_none(site: Site, label: str) -> None:
    await site.box("my-app")
    with pytest.raises(ssl.SSLError):
        await site.caddy.handshake(f"{label}.{PREVIEW_DOMAIN}")


async def test_a_box_that_comes_later_gets_one_then(site: Site) -> None:
    host = f"late-3000.{PREVIEW_DOMAIN}"
    with pytest.raises(ssl.SSLError):
        await site.caddy.handshake(host)
    await site.box("late")
    assert await site.caddy.handshake(host) == (host,)


async def test_the_question_for_certificates_is_not_reached_from_outside(site: Site) -> None:
    await site.box("my-app")
    client = site.client()
    domain = f"my-app-3000.{PREVIEW_DOMAIN}"
    for path in ("/v1/tls-ask", "/v1/tls-ask/", "//v1/tls-ask", "/v1/%74ls-ask", "/V1/TLS-ASK"):
        answer = await client.get(f"{site.api}{path}", params={"domain": domain})
        assert answer.status_code in (403, 404), path


async def test_the_api_is_served_with_its_own_certificate(site: Site) -> None:
    assert await site.caddy.handshake(API_HOST) == (API_HOST,)
    client = site.client(authorization=f"Bearer {site.web.key}")
    assert (await client.get(f"{site.api}/healthz")).json() == {"ok": True}
    await site.box("web")
    assert [box["name"] for box in (await client.get(f"{site.api}/v1/boxes")).json()] == ["web"]


async def test_what_a_command_says_is_there_before_it_ends(site: Site) -> None:
    client = site.client(authorization=f"Bearer {site.web.key}")
    await site.box("web")
    async with client.stream(
        "POST",
        f"{site.api}/v1/exec/web",
        content=b"echo first; sleep 600",
        headers={"content-type": "text/plain"},
    ) as answer:
        async with asyncio.timeout(20):
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    break
        assert line == "data: Zmlyc3QK"


async def test_a_command_whose_client_is_gone_ends(site: Site) -> None:
    client = site.client(authorization=f"Bearer {site.web.key}")
    box_id = await site.box("web")
    agent = psutil.Process(site.web.backend.pid(box_id))
    async with client.stream(
        "POST",
        f"{site.api}/v1/exec/web",
        content=b"echo begun; exec sleep 600",
        headers={"content-type": "text/plain"},
    ) as answer:
        await anext(answer.aiter_lines())
        assert agent.children()
    await until(lambda: not agent.children())


async def test_an_owner_that_comes_through_the_proxy_is_seen_where_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[tuple[str, str]] = []
    monkeypatch.setattr(
        site.web.lifecycle.source_addresses, "came", lambda *pair: came.append(pair)
    )
    client = site.client(**{"x-forwarded-for": "192.0.2.7", "x-api-key": site.web.key})
    assert (await client.get(f"{site.api}/v1/boxes")).status_code == 200
    assert came == [(ALICE.owner, "127.0.0.1")]
