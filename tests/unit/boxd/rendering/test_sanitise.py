"""Documents of strangers become harmless, whatever is tried in them."""

from __future__ import annotations

import pytest

from boxd.rendering.sanitise import from_html, from_markdown
from tests.harness.http.hostile_markup import HOSTILE, check_inert


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
