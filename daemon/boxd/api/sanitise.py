"""A program: what strangers wrote, on stdin, becomes harmless HTML, on stdout.

It is run for each document, in a process of its own with little time and memory: a parser that
builds the tree a browser would build makes gigabytes of some documents of 100 KiB. Imports nothing
of the service.
"""

from __future__ import annotations

import resource
import sys

import nh3
from markdown_it import MarkdownIt

CPU_S = 2
MEMORY_BYTES = 512 * 1024 * 1024
MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes; what is larger is a failure."""
TOO_LARGE = 3
"""Exit status."""
_SCHEMES = {"http", "https", "mailto"}


def from_markdown(text: str) -> str:
    """CommonMark with tables as harmless HTML; tags in it are shown as they stand."""
    return from_html(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))


def from_html(text: str) -> str:
    """Only elements and attributes that show something; no scripts, styles, forms or frames."""
    return nh3.clean(text, url_schemes=_SCHEMES, link_rel="noopener noreferrer nofollow")


def main() -> int:
    """Reads a line with the kind of document, `markdown` or `html`, and then the document."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kind, _, document = sys.stdin.buffer.read().partition(b"\n")
    convert = {b"markdown": from_markdown, b"html": from_html}[kind]
    clean = convert(document.decode("utf-8")).encode("utf-8")
    if len(clean) > MAX_OUTPUT:
        return TOO_LARGE
    sys.stdout.buffer.write(clean)
    return 0


if __name__ == "__main__":
    sys.exit(main())
