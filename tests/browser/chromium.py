"""Debian's Chromium, which finds every host at the proxy of fixture `site`."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site

PROGRAM = Path("/usr/bin/chromium")
PATIENCE_MS = 30_000
"""How long anything may take to appear on a page."""


@asynccontextmanager
async def open_chromium(site: Site, profile: Path | None = None) -> AsyncIterator[BrowserContext]:
    """Certificates of the proxy's authority are good, no others. `profile`: where a browser keeps
    what it knows that takes cookies in frames of other sites; None: one that takes none there.
    """
    if not PROGRAM.exists():
        raise RuntimeError(f"{PROGRAM} is missing: run scripts/setup dev")
    arguments = [
        "--host-resolver-rules=MAP * 127.0.0.1",
        f"--ignore-certificate-errors-spki-list={site.caddy.issuer_pin}",
    ]
    async with async_playwright() as playwright:
        chromium = playwright.chromium
        if profile is None:
            browser = await chromium.launch(executable_path=PROGRAM, args=arguments)
            context = await browser.new_context()
        else:
            settings = profile / "Default/Preferences"
            settings.parent.mkdir()
            settings.write_text(json.dumps({"profile": {"cookie_controls_mode": 0}}))
            context = await chromium.launch_persistent_context(
                profile, executable_path=PROGRAM, args=arguments
            )
        context.set_default_timeout(PATIENCE_MS)
        try:
            yield context
        finally:
            if context.browser is not None:
                await context.browser.close()
            else:
                await context.close()
