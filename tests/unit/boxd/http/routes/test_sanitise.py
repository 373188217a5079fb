"""Documents of strangers become harmless, whatever is tried in them."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from boxd.http.routes.sanitise import from_html, from_markdown

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
    """What stands in the body of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes it."""
        self.tags.append(tag)
        self.attributes += attrs


def check_inert(text: str) -> None:
    """Nothing in it can act."""
    found = Elements(text)
    assert not FORBIDDEN & {*found.tags}
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert name != "style"
        if name in ("href", "src"):
            assert value is not None
            assert value.startswith(("http://", "https://", "mailto:", "data:image/svg", "x", "1"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_can_act(hostile: str) -> None:
    for convert in (from_html, from_markdown):
        check_inert(convert(f"before {hostile} after"))
        check_inert(convert(f"{hostile}\n\n* {hostile}\n"))


def test_what_shows_something_stays() -> None:
    shown = from_html('<h1>One</h1><table><tr><td>b</td></tr></table><a href="https://a.b">x</a>')
    for part in ("<h1>One</h1>", "<td>b</td>", 'href="https://a.b"'):
        assert part in shown
    assert "<h1>One</h1>" in from_markdown("# One")
    assert "<td>b</td>" in from_markdown("| a |\n|---|\n| b |")


def test_links_lead_nowhere_dangerous() -> None:
    text = "[a](javascript:alert(1)) [b](https://example.com) ![c](data:text/html,x)"
    shown = from_markdown(text)
    check_inert(shown)
    assert 'href="https://example.com" rel="noopener noreferrer nofollow"' in shown
