"""A program that reads an untrusted document from stdin and writes safe HTML to stdout.

The daemon runs it once for each document, as a process with little time and memory. An HTML parser
that builds the same tree as a browser needs gigabytes for some documents of 100 KiB. The program
imports nothing from the service.
"""

from __future__ import annotations

import resource
import sys

import nh3
from markdown_it import MarkdownIt

CPU_S = 2
MEMORY_BYTES = 512 * 1024 * 1024
MAX_OUTPUT = 4 * 1024 * 1024
"""Maximum size of the output in bytes; larger output is an error."""
TOO_LARGE = 3
"""Exit status for output above MAX_OUTPUT."""
_SCHEMES = {"http", "https", "mailto"}


def from_markdown(text: str) -> str:
    """Render CommonMark with tables as safe HTML. HTML tags in the text are escaped."""
    return from_html(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))


def from_html(text: str) -> str:
    """Return HTML with only harmless elements: no scripts, styles, forms or frames."""
    return nh3.clean(text, url_schemes=_SCHEMES, link_rel="noopener noreferrer nofollow")


def main() -> int:
    """Read a line with the kind of document, `markdown` or `html`, and then the document."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_OUTPUT, MAX_OUTPUT))
    kind, _, document = sys.stdin.buffer.read().partition(b"\n")
    convert = {b"markdown": from_markdown, b"html": from_html}[kind]
    clean = convert(document.decode("utf-8")).encode("utf-8")
    if len(clean) > MAX_OUTPUT:
        return TOO_LARGE
    sys.stdout.buffer.write(clean)
    return 0


if __name__ == "__main__":
    sys.exit(main())
