"""A Flask application in Chromium: pages, parts of pages, forms, frames; by both forms."""

from __future__ import annotations

import json
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.config import Address, Config
from tests.browser.chromium import open_chromium
from tests.browser.running import PYTHON, SOURCES, running
from tests.harness.http.site import serve_site
from tests.harness.http.web import PREVIEW_DOMAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import BrowserContext, Page

    from tests.harness.http.site import Site

PORT = 5000
GREEN = "rgb(0, 128, 0)"


@asynccontextmanager
async def guestbook(site: Site) -> AsyncIterator[str]:
    """The application; gives the id of its box."""
    command = f"cd {SOURCES} && exec {PYTHON} -m flask --app guestbook run --port {PORT}"
    async with running(site, "web", PORT, command) as box_id:
        yield box_id


def place(site: Site, form: str, box_id: str) -> str:
    """The root of the application without a slash at the end."""
    return {
        "host": site.preview("web", PORT),
        "id host": site.preview(box_id[:12], PORT),
        "path": site.path("web", PORT),
        "id path": site.path(box_id, PORT),
    }[form]


async def colour(page: Page) -> str:
    """Of the title, which the style sheet says."""
    found = await page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("form", ["host", "id host", "path", "id path"])
async def test_a_visit(site: Site, chromium: BrowserContext, form: str) -> None:
    async with guestbook(site) as box_id:
        root = place(site, form, box_id)
        page = await chromium.new_page()
        await page.goto(f"{root}/?key={site.web.key}&mine=1")
        # Its style sheet and script come by the cookie, which no script may read.
        assert await colour(page) == GREEN
        assert await page.text_content("#script") == "ran "
        host = root.removeprefix("https://").split("/")[0]
        assert await page.text_content("#seen") == f"https {host} mine=1"
        await page.fill("input", "Ada")
        await page.click("button")
        await page.wait_for_selector(".flash")
        assert page.url == f"{root}/"
        assert await page.text_content(".flash") == "Welcome, Ada"
        assert await page.text_content("#who") == "Ada"
        names = {one["name"] for one in await chromium.cookies(f"{root}/")}
        assert names == {"session", "svc_proxy"}
        assert not await chromium.cookies(site.api)
        again = await chromium.new_page()
        await again.goto(f"{root}/")
        assert await again.text_content("#who") == "Ada"


async def test_the_app_sees_no_credential(site: Site, chromium: BrowserContext) -> None:
    async with guestbook(site):
        root = site.preview("web", PORT)
        page = await chromium.new_page()
        await page.goto(f"{root}/?key={site.web.key}")
        told = json.dumps(await page.evaluate("fetch('/whoami').then(answer => answer.json())"))
        assert site.web.key not in told
        assert "svc_proxy" not in told
        assert root in told


async def test_a_visitor_without_a_key_sees_nothing(site: Site, chromium: BrowserContext) -> None:
    async with guestbook(site):
        page = await chromium.new_page()
        for url in (site.preview("web", PORT), site.path("web", PORT)):
            answer = await page.goto(f"{url}/")
            assert answer is not None
            assert (answer.status, await answer.json()) == (401, {"error": "invalid API key"})


async def framed(site: Site, context: BrowserContext, form: str, box_id: str) -> str:
    """What the script of a page says that stands in a frame of a page of another site."""
    page = await context.new_page()
    inner = place(site, form, box_id)
    outer = place(site, "path" if form == "host" else "host", box_id)
    await page.goto(f"{outer}/frame?key={site.web.key}&of={inner}/%3Fkey={site.web.key}")
    frame = page.frames[1]
    await frame.wait_for_load_state()
    return await frame.text_content("#script") or ""


@pytest.mark.parametrize("form", ["host", "path"])
async def test_in_a_frame_of_another_site(site: Site, tmp_path: Path, form: str) -> None:
    async with guestbook(site) as box_id, open_chromium(site, tmp_path) as context:
        assert await framed(site, context, form, box_id) == "ran "


@pytest.mark.parametrize("partitioned", [True, False])
async def test_a_browser_that_takes_no_cookies_of_others_takes_a_partitioned_one(
    *, partitioned: bool
) -> None:
    config = Config(
        api_addr=Address("127.0.0.1", 0),
        preview_domain=PREVIEW_DOMAIN,
        partitioned_cookies=partitioned,
    )
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with (
            serve_site(Path(name), config) as site,
            guestbook(site) as box_id,
            open_chromium(site) as context,
        ):
            shown = await framed(site, context, "host", box_id)
            assert shown == ("ran " if partitioned else "-")


async def test_on_one_machine_without_tls() -> None:
    config = Config(api_addr=Address("127.0.0.1", 0), preview_domain="localhost")
    with tempfile.TemporaryDirectory(prefix="web-") as name:
        async with (
            serve_site(Path(name), config) as site,
            guestbook(site),
            open_chromium(site) as context,
        ):
            page = await context.new_page()
            root = f"http://web-{PORT}.localhost:{site.web.address.port}"
            await page.goto(f"{root}/?key={site.web.key}")
            assert await colour(page) == GREEN
            await page.fill("input", "Ada")
            await page.click("button")
            await page.wait_for_selector("text=Welcome, Ada")
            assert page.url == f"{root}/"


async def test_another_site_cannot_act_by_the_cookie(site: Site, tmp_path: Path) -> None:
    async with guestbook(site) as box_id, open_chromium(site, tmp_path) as context:
        page = await context.new_page()
        mine, theirs = place(site, "host", box_id), place(site, "path", box_id)
        await page.goto(f"{mine}/?key={site.web.key}")
        await page.goto(f"{theirs}/?key={site.web.key}")
        async with page.expect_response(f"{mine}/sign") as answered:
            await page.evaluate(
                """place => fetch(place, {method: "POST", mode: "no-cors", credentials: "include",
                                          body: new URLSearchParams({name: "Mallory"})})""",
                f"{mine}/sign",
            )
        assert (await answered.value).status == 403
        await page.goto(f"{mine}/")
        assert await page.text_content("#who") == "nobody"
