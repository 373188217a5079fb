"""Fixture `chromium`: a browser before `site`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.browser.chromium import open_chromium

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site


@pytest_asyncio.fixture
async def chromium(site: Site) -> AsyncIterator[BrowserContext]:
    """See `open_chromium`."""
    async with open_chromium(site) as context:
        yield context
