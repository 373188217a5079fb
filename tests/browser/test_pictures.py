"""The pictures of the documentation. Each run makes them and compares their text.

`first-session`: a first session in a terminal. OpenSSH connects to a real `boxd serve`, whose boxes
are runc containers; CRIU suspends one with its memory.
`api-reference` and `document`: pages of the HTTP API in Chromium, behind the TLS proxy. The stores
of this service are in memory.

A run writes the pictures to .build/pictures. `make docs-pictures` copies them to docs/pictures.
The tests compare what the pictures say: the terminal's text, without values that differ in each
run (`VARYING`), and the text blocks at the top of a page. No test compares pixels: they differ
between versions of fonts and browsers.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.documents.recording import WIDTH, Recorder, draw, screen
from tests.harness.documents.terminal import open_shell
from tests.harness.http.caddy import ROOT
from tests.harness.http.web import ALICE
from tests.harness.service.daemon import installation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import BrowserContext, Page

    from tests.harness.documents.terminal import Reply
    from tests.harness.http.site import Site
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(120)

DOCUMENTED = ROOT / "docs/pictures"
NEW = ROOT / ".build/pictures"
REPLACES = "REPLACE_PICTURES" in os.environ
"""Whether `make docs-pictures` runs the tests: the documented pictures may then be old."""
RENEW = "the documentation shows something else: run make docs-pictures"
MAX_SVG, MAX_PNG = 60_000, 150_000
"""Bytes of a picture."""
CLI = "ssh -p 2222 cli@127.0.0.1"
DEV = "ssh -p 2222 dev@127.0.0.1"
INFO = f"{CLI} info dev | grep -E '^(state|next|saved memory)'"
IN_BOX = r"root@dev:~# "
FIRST_SESSION: tuple[tuple[str, tuple[Reply, ...]], ...] = (
    (
        DEV,
        (
            (r"\(yes/no/\[fingerprint\]\)\? ", "yes\n"),
            (IN_BOX, "df -h /wrk\n"),
            (IN_BOX, "echo hello > /wrk/hello.txt\n"),
            (IN_BOX, "nohup sleep 1h &> /dev/null &\n"),
            (IN_BOX, "exit\n"),
        ),
    ),
    ("ssh -p 2222 other@127.0.0.1 cat /wrk/hello.txt", ()),
    (f"{CLI} ls", ()),
    (f"{CLI} suspend dev", ()),
    (INFO, ()),
    (f"{CLI} resume dev", ()),
    (INFO, ()),
    (f"{DEV} pgrep -a sleep", ()),
)
"""Commands, and what the person then types."""
SAME_PROCESS = re.compile(r"^\[1\] (\d+)$.*suspend dev$.*resume dev$.*^\1 sleep 1h$", re.M | re.S)
VARYING = (
    (r"SHA256:\S+", "FINGERPRINT"),
    (r"\b[0-9a-f]{12}\b", "ID"),
    (r"\b(\d+[dhms])+\b", "TIME"),
    (r"\b\d+(\.\d+)? ([KMG]i)?B\b", "SIZE"),
    (r"^\[1\] \d+$", "[1] PID"),
    (r"^\d+ sleep", "PID sleep"),
    # The widths of columns follow the values.
    (r" {2,}", "  "),
)
DOCUMENT = """\
# Release 2.4

| Check | Result |
|---|---|
| unit tests | 1,204 passed |
| migration of the test database | 41 s |
| open questions | none |

The migration locks table `orders`. Run it **before 06:00 UTC**:

```
ssh -p 2222 dev@127.0.0.1 /wrk/release/migrate --target orders
```

1. Migrate the database.
2. Deploy the two boxes `web` and `worker`.
3. Watch the error rate for ten minutes.
"""
BLOCKS = """columns => columns.map(column => [...document.querySelectorAll(`${column} > *`)].map(
    block => [block.innerText, block.getBoundingClientRect().bottom <= innerHeight]))"""
"""The text blocks of columns of a page, and whether the picture shows the whole of each."""


@pytest.fixture
def daemon(image_rootfs: Path) -> Iterator[Daemon]:
    """Serves on the ports that the documentation names."""
    with installation(image_rootfs) as service:
        service.addresses = ("127.0.0.1:2222", "127.0.0.1:8080")
        service.start()
        yield service


def test_the_documentation_shows_a_real_session(daemon: Daemon) -> None:
    with tempfile.TemporaryDirectory(prefix="reader-") as directory:
        home = Path(directory) / "home"
        home.mkdir()
        with open_shell(home, home, (50, WIDTH)) as shell:
            key = "mkdir .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519"
            assert shell.run(key).status == 0
            recorder = Recorder(shell)
            for command, replies in FIRST_SESSION:
                recorder.show(command, replies)
            cast = recorder.cast("A first session")
    text = screen(cast).plain
    assert SAME_PROCESS.search(text), text
    svg = draw(cast).encode()
    assert len(svg) < MAX_SVG
    _write("first-session.cast", cast.encode())
    _write("first-session.svg", svg)
    if not REPLACES:
        documented = screen((DOCUMENTED / "first-session.cast").read_text()).plain
        assert _without_varying(text) == _without_varying(documented), RENEW


def test_the_still_picture_shows_the_recording() -> None:
    if not REPLACES:
        cast = (DOCUMENTED / "first-session.cast").read_text()
        assert (DOCUMENTED / "first-session.svg").read_text() == draw(cast), RENEW


async def test_the_documentation_shows_the_api_reference(
    site: Site, chromium: BrowserContext
) -> None:
    page = await _open(site, chromium, "/docs", 1200, 695)
    await _photograph(page, "api-reference", ["nav", "main"])


async def test_the_documentation_shows_a_document(site: Site, chromium: BrowserContext) -> None:
    await site.web.operations.canvases.render_canvas(ALICE, "release", DOCUMENT, title="Release")
    page = await _open(site, chromium, "/v1/surfaces/release", 800, 450)
    await _photograph(page, "document", ["body"])


async def _open(site: Site, chromium: BrowserContext, path: str, width: int, height: int) -> Page:
    page = await chromium.new_page()
    await page.set_extra_http_headers({"authorization": f"Bearer {site.web.key}"})
    await page.set_viewport_size({"width": width, "height": height})
    answer = await page.goto(site.api + path)
    assert answer is not None
    assert answer.status == 200
    return page


async def _photograph(page: Page, name: str, columns: list[str]) -> None:
    """Make a picture of the top of a page, and compare the text that it shows."""
    blocks = await page.evaluate(BLOCKS, columns)
    png = await page.screenshot()
    assert len(png) < MAX_PNG
    visible = [[text for text, is_whole in column if is_whole] for column in blocks]
    assert all(visible)
    _write(f"{name}.png", png)
    _write(f"{name}.json", json.dumps(visible, indent=1).encode() + b"\n")
    if not REPLACES:
        documented = json.loads((DOCUMENTED / f"{name}.json").read_text())
        # Another font may move the lower edge of the picture; the page must begin with the text.
        begins = [
            [text for text, _ in column[: len(texts)]]
            for column, texts in zip(blocks, documented, strict=True)
        ]
        assert begins == documented, RENEW


def _write(name: str, data: bytes) -> None:
    NEW.mkdir(parents=True, exist_ok=True)
    (NEW / name).write_bytes(data)


def _without_varying(text: str) -> str:
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text
