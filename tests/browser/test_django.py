"""Django's admin in Chromium: its login with a CSRF token, redirects, a form that is saved."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.browser.running import PYTHON, run, running
from tests.harness.http.web import PREVIEW_DOMAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import BrowserContext

    from tests.harness.http.site import Site

PORT = 8000
SETTINGS = f"""
ALLOWED_HOSTS = [".{PREVIEW_DOMAIN}"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
"""
"""The settings that docs/guide/previews.md names."""


@asynccontextmanager
async def admin(site: Site, folder: Path) -> AsyncIterator[None]:
    """A new project, with an administrator, that is served."""
    place = folder / "project"
    manage = f"{PYTHON} manage.py"
    await run(site, "web", f"cd {folder} && {PYTHON} -m django startproject project")
    with (place / "project/settings.py").open("a") as settings:
        settings.write(SETTINGS)
    password = "DJANGO_SUPERUSER_PASSWORD=correct-horse"
    await run(
        *(site, "web"),
        f"cd {place} && {manage} migrate -v 0 &&"
        f" {password} {manage} createsuperuser --noinput --username ada --email a@example.net",
    )
    serve = f"cd {place} && exec {manage} runserver --noreload {PORT}"
    async with running(site, "web", PORT, serve):
        yield


async def test_admin(site: Site, chromium: BrowserContext, tmp_path: Path) -> None:
    async with admin(site, tmp_path):
        root = site.preview("web", PORT)
        page = await chromium.new_page()
        await page.goto(f"{root}/admin/?key={site.web.key}")
        assert page.url.startswith(f"{root}/admin/login/?next=/admin/")
        await page.fill("#id_username", "ada")
        await page.fill("#id_password", "correct-horse")
        await page.click("[type=submit]")
        await page.wait_for_selector("text=Site administration")
        assert page.url.startswith(f"{root}/admin/")
        assert site.web.key not in page.url
        await page.goto(f"{root}/admin/auth/group/add/")
        await page.fill("#id_name", "editors")
        await page.click("[name=_save]")
        await page.wait_for_selector(".messagelist .success")
        assert "editors" in (await page.text_content("#result_list") or "")
        # Its style sheets came: the header has their colour.
        header = await page.evaluate(
            "getComputedStyle(document.querySelector('#header')).backgroundColor"
        )
        assert header not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
