"""Vite's development server in Chromium: an edit shows on the page without a new load."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.browser.running import INSTALLED, SOURCES, run, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site

PORT = 5173


@asynccontextmanager
async def project(site: Site, folder: Path) -> AsyncIterator[Path]:
    """A project that is served; its directory."""
    place = folder / "project"
    shutil.copytree(SOURCES / "vite", place)
    (place / "node_modules").symlink_to(INSTALLED / "vite/node_modules")
    vite = f"node node_modules/vite/bin/vite.js --host 127.0.0.1 --port {PORT} --strictPort"
    async with running(site, "web", PORT, f"cd {place} && exec {vite}"):
        yield place


async def test_an_edit_shows_without_a_new_load(
    site: Site, chromium: BrowserContext, tmp_path: Path
) -> None:
    async with project(site, tmp_path) as place:
        page = await chromium.new_page()
        async with page.expect_websocket() as opened:
            await page.goto(f"{site.preview('web', PORT)}/?key={site.web.key}")
        socket = await opened.value
        assert socket.url.startswith(site.preview("web", PORT).replace("https", "wss"))
        await page.wait_for_selector("text=first")
        await page.evaluate("window.loaded = 'once'")
        edit = "export const message = 'second';"
        await run(site, "web", f'echo "{edit}" > {place}/message.js')
        await page.wait_for_selector("text=second")
        assert await page.evaluate("window.loaded") == "once"
