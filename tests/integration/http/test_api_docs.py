"""`/docs` and `/v1/openapi.json` as they are served; every example of the guide is run as it is."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from boxd.http.openapi.document import document
from tests.harness.http.portserver import listening
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.http.portserver import Visit
    from tests.harness.http.web import Web

EXAMPLE = re.compile(
    r'<pre class="sh"><code>(.*?)</code></pre>\s*<pre class="out"><code>(.*?)</code></pre>', re.S
)


class Tags(HTMLParser):
    """What a page consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes it."""
        told = {name: value or "" for name, value in attrs}
        self.names.add(tag)
        assert not [name for name in told if name.startswith("on") or name == "style"]
        self.ids += [told["id"]] if "id" in told else []
        self.links += [told["href"]] if "href" in told else []
        self.loaded += [told["src"]] if "src" in told else []
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Ends the last one."""
        assert self.open.pop() == tag


async def test_the_page_is_whole_and_loads_nothing(web: Web) -> None:
    client = web.client()
    del client.headers["authorization"]
    response = await client.get("/docs")
    assert response.status_code == 200
    tags = Tags()
    tags.feed(response.text)
    tags.close()
    assert not tags.open
    assert not tags.names & {"script", "link", "img", "iframe", "form", "object"}
    assert not tags.loaded
    assert len(set(tags.ids)) == len(tags.ids)
    for link in tags.links:
        assert link == "v1/openapi.json" or link.removeprefix("#") in tags.ids
    policy = response.headers["content-security-policy"]
    style = response.text.partition("<style>")[2].partition("</style>")[0]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{hashed}';")


async def test_the_document_is_served_without_a_key(web: Web) -> None:
    client = web.client()
    del client.headers["authorization"]
    response = await client.get("/v1/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == document(web.api.routes)


async def _saw(visit: Visit) -> None:
    text = b"the app saw " + visit.target + b"\n"
    await visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


async def _run(script: str, env: dict[str, str], place: Path) -> str:
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=place,
    )
    out, err = await shell.communicate()
    assert (shell.returncode, err) == (0, b""), (script, err)
    return out.decode()


@pytest.mark.timeout(120)
async def test_examples_of_the_guide_are_true(web: Web, tmp_path: Path) -> None:
    page = (await web.client().get("/docs")).text
    examples = [(unescape(one), unescape(other)) for one, other in EXAMPLE.findall(page)]
    assert len(examples) == page.count('<pre class="sh">') == page.count('<pre class="out">')
    assert len(examples) > 6
    await web.operations.boxes.up(ALICE, "dev")
    async with listening(_saw) as app:
        env = {"PATH": "/usr/bin:/bin", "URL": web.url, "KEY": web.key, "PORT": str(app.port)}
        for script, shown in examples:
            said = (await _run(script, env, tmp_path)).replace("\r", "")
            assert said.rstrip("\n") == shown.rstrip("\n"), script
