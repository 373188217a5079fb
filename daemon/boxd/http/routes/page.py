"""Canvases as HTML pages.

The content is never trusted. Another process sanitises it. The page has no scripts, loads nothing
and runs in a browser sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from boxd.rendering import program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.model.canvas import Canvas, Mime
    from boxd.rendering.program import Run

RENDER_S = 10.0
"""Maximum time to sanitise a document, in seconds, including the wait for a processor."""
AT_ONCE = 2
"""Sanitiser processes that run at the same time, each for a different owner."""
MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of sanitised HTML. The sanitiser refuses to write more."""
_KINDS: dict[Mime, str] = {"text/markdown": "markdown", "text/html": "html"}
_STYLE = """
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 1rem/1.5 sans-serif; }
pre { overflow-x: auto; padding: .75rem; background: #f4f4f4; white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { border: 1px solid #bbb; padding: .25rem .5rem; }
img { max-width: 100%; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
"""The Content-Security-Policy of pages, and of content that is served unchanged."""
_log = logging.getLogger(__name__)


class Pages:
    """Renders canvases as pages. One object for a server."""

    def __init__(self, run: Run = program.run) -> None:
        """`run` runs the sanitiser; by default with the rights of this process."""
        self._run = run
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One lock for each owner whose document is being sanitised."""

    async def page(self, canvas: Canvas, content: str) -> str:
        """Return the page as HTML. A type without a renderer is shown as source."""
        title = html.escape(canvas.title or canvas.id)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
            f"{await self._body(canvas, content)}\n</body>\n</html>\n"
        )

    async def _body(self, canvas: Canvas, content: str) -> str:
        if canvas.mime == "image/svg+xml":
            data = base64.b64encode(content.encode()).decode()
            name = html.escape(canvas.title or canvas.id)
            return f'<img alt="{name}" src="data:image/svg+xml;base64,{data}">'
        source = f"<pre>{html.escape(content)}</pre>"
        if canvas.mime not in _KINDS:
            return source
        turn = self._turns.setdefault(canvas.owner, asyncio.Lock())
        async with turn, self._slots:
            clean = await _sanitised(_KINDS[canvas.mime], content.encode(), self._run)
        if clean is None:
            return f"<p>This document is too complex to render. Its source:</p>\n{source}"
        return clean


async def _sanitised(kind: str, content: bytes, run: Run) -> str | None:
    """Return the sanitised HTML; None if the sanitiser exceeded its time or memory."""
    with _file(kind.encode() + b"\n" + content) as document, _file() as output:
        try:
            async with asyncio.timeout(RENDER_S):
                status: int | None = await run(document, output)
        except TimeoutError:
            status = None
        clean = os.pread(output, MAX_OUTPUT, 0)
    if status != 0:
        reason = f"no end in {RENDER_S:g} s" if status is None else f"exit status {status}"
        _log.info("cannot sanitise a canvas: %s; showing its source", reason)
        return None
    return clean.decode()


@contextmanager
def _file(content: bytes = b"") -> Iterator[int]:
    """Yield a new file in memory, at its beginning."""
    descriptor = os.memfd_create("document", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
            file.seek(0)
        yield descriptor
    finally:
        os.close(descriptor)
