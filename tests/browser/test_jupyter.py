"""JupyterLab in Chromium: a cell is run by a kernel, over WebSockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.browser.running import PYTHON, running

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site

PORT = 8888
CELL = "print('six times seven is', 6 * 7)"
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": "c0ffee",
            "metadata": {},
            "outputs": [],
            "source": CELL,
        }
    ],
    "metadata": {"kernelspec": {"display_name": "Python 3", "name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
OPTIONS = (
    "--allow-root --no-browser --ServerApp.allow_remote_access=True --IdentityProvider.token=''"
)


@pytest.mark.timeout(150)
async def test_a_cell_runs(site: Site, chromium: BrowserContext, tmp_path: Path) -> None:
    (tmp_path / "sums.ipynb").write_text(json.dumps(NOTEBOOK))
    own = f"export HOME={tmp_path} && cd {tmp_path}"
    serve = f"{own} && exec {PYTHON} -m jupyterlab {OPTIONS} --port {PORT}"
    async with running(site, "web", PORT, serve):
        page = await chromium.new_page()
        page.set_default_timeout(90_000)
        await page.goto(f"{site.preview('web', PORT)}/lab/tree/sums.ipynb?key={site.web.key}")
        await page.wait_for_selector("text=Python 3 (ipykernel) | Idle")
        await page.click(".jp-CodeCell .cm-content")
        await page.keyboard.press("Shift+Enter")
        output = page.locator(".jp-OutputArea-output")
        await output.wait_for()
        assert await output.text_content() == "six times seven is 42\n"
