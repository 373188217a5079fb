"""Hostile markup, and a check that a page is inert."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    '<a href="javascript:alert(1)">x</a>',
    '<a href=" java&#9;script:alert(1)">x</a>',
    '<iframe src="data:text/html,<script>alert(1)</script>"></iframe>',
    '<form action="https://elsewhere.example"><input name=a><button>b</button></form>',
    "<style>@import 'https://elsewhere.example'</style>",
    '<p style="background:url(https://elsewhere.example)">x</p>',
    '<meta http-equiv="refresh" content="0;url=https://elsewhere.example">',
    '<base href="https://elsewhere.example"><link rel=stylesheet href=x>',
    "<object data=x></object><embed src=x><math><mtext></math>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<svg></p><style><a id='</style><img src=1 onerror=alert(1)>'>",
    "</body></html><script>alert(1)</script>",
    "<!--><img src=x onerror=alert(1)>-->",
]
FORBIDDEN = {
    *("style", "meta"),
    *("script", "iframe", "form", "input", "button", "object", "embed", "base", "link", "svg"),
    *("math", "frame", "frameset", "textarea", "select", "template", "noscript", "video", "audio"),
}


class Elements(HTMLParser):
    """The elements in the body of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.tags.append(tag)
        self.attributes += attrs


def check_inert(text: str) -> None:
    """Check that no element of the page can run code or load a resource."""
    found = Elements(text)
    assert not FORBIDDEN & {*found.tags}
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert name != "style"
        if name in ("href", "src"):
            assert value is not None
            assert value.startswith(("http://", "https://", "mailto:", "data:image/svg", "x", "1"))
