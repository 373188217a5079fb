"""The TypeScript client in Chromium: modules without a bundler, on the origin of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.clients.typescript import built_client

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Route

    from tests.harness.http.site import Site

USE = """async ([url, key]) => {
    const { Client, NotFound } = await import("/client/index.js");
    const client = new Client({ url, key });
    const box = client.box("web");
    const events = [];
    const stdin = new Blob(["one"]);
    for await (const event of box.stream("cat; echo two >&2; exit 3", { stdin })) {
        events.push(event.text ?? event.code);
    }
    await client.drive().write("a/b.txt", new Blob(["content"]));
    const part = await client.drive().read("a/b.txt", { start: 1, end: 4 });
    const missing = await client.box("none").info().catch((error) => error);
    const terminal = await box.terminal();
    terminal.write("exit 7\\n");
    while ((await terminal.read()) !== null) {}
    const names = (await client.boxes.list()).map((info) => info.name);
    const text = new TextDecoder().decode(part);
    return [events.sort(), text, missing instanceof NotFound, terminal.exitCode, names];
}"""


async def test_a_page_uses_boxes_files_and_terminals(site: Site, chromium: BrowserContext) -> None:
    await site.box("web")
    modules = built_client() / "node_modules/boxd-client/dist"

    async def serve(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        await route.fulfill(content_type="text/javascript", path=modules / name)

    await chromium.route(f"{site.api}/client/*", serve)
    page = await chromium.new_page()
    await page.goto(f"{site.api}/healthz")
    found = await page.evaluate(USE, [site.api, site.web.key])
    assert found == [[3, "one", "two\n"], "ont", True, 7, ["web"]]
