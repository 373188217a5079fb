"""WebSockets, events and large bodies in Chromium, by both forms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.running import PYTHON, SOURCES, running

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site

PORT = 7000
GROWTH = 64 << 20
"""Bytes by which the daemon's memory may grow while it passes a GiB on."""
SAID = """open chat
text h\u00e9llo
binary 300000 true
closed 4001 as you wish
"""


def root(site: Site, form: str) -> str:
    """Of the application, without a slash at the end."""
    return site.preview("web", PORT) if form == "host" else site.path("web", PORT)


@pytest.mark.parametrize("form", ["host", "path"])
async def test_websockets(site: Site, chromium: BrowserContext, form: str) -> None:
    async with running(site, "web", PORT, f"exec {PYTHON} {SOURCES}/echo.py {PORT}"):
        page = await chromium.new_page()
        await page.goto(f"{root(site, form)}/?key={site.web.key}")
        await page.wait_for_function(
            "document.getElementById('said').textContent.includes('closed')"
        )
        assert await page.text_content("#said") == SAID


@pytest.mark.parametrize("form", ["host", "path"])
async def test_events_come_one_by_one(site: Site, chromium: BrowserContext, form: str) -> None:
    async with running(site, "web", PORT, f"exec {PYTHON} {SOURCES}/streams.py {PORT}"):
        page = await chromium.new_page()
        await page.goto(f"{root(site, form)}/?key={site.web.key}")
        await page.wait_for_selector("li:has-text('open')")
        for text in ("one", "two", "three"):
            await page.evaluate("text => publish(text)", text)
            await page.wait_for_selector(f"li:has-text('{text}')")
        assert await page.locator("li").all_text_contents() == ["open", "one", "two", "three"]


@pytest.mark.timeout(150)
async def test_a_large_download_passes_through(site: Site, chromium: BrowserContext) -> None:
    async with running(site, "web", PORT, f"exec {PYTHON} {SOURCES}/streams.py {PORT}"):
        page = await chromium.new_page()
        await page.goto(f"{site.preview('web', PORT)}/?key={site.web.key}")
        before = _begin_to_watch_memory()
        loaded = await page.evaluate("load()")
        assert loaded == {"bytes": 1 << 30, "length": 1 << 30, "good": True}
        assert _most_memory() - before < GROWTH


@pytest.mark.parametrize("form", ["host", "path"])
async def test_a_large_upload_passes_through(
    site: Site, chromium: BrowserContext, form: str
) -> None:
    async with running(site, "web", PORT, f"exec {PYTHON} {SOURCES}/streams.py {PORT}"):
        page = await chromium.new_page()
        await page.goto(f"{root(site, form)}/?key={site.web.key}")
        said = await page.evaluate(
            """() => fetch("sink", {method: "POST", body: new Uint8Array(16 << 20)})
                   .then(answer => answer.text())"""
        )
        assert said == "all"


def _begin_to_watch_memory() -> int:
    """Bytes that the daemon, which is this process, holds now; the peak counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _most_memory()


def _most_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10
