"""The blocking client is what `scripts/client_sync.py` makes of the one for asyncio."""

from __future__ import annotations

import pytest

from scripts.client_sync import PACKAGE, converted, modules


def test_the_blocking_client_is_up_to_date() -> None:
    stale = [path.name for path, text in modules().items() if path.read_text() != text]
    assert not stale, f"run python -m scripts.client_sync: {stale}"


def test_no_other_module_is_there() -> None:
    names = {path.name for path in (PACKAGE / "_async").glob("*.py")}
    assert {path.name for path in (PACKAGE / "_sync").glob("*.py")} == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("async def f() -> None:\n    await g()\n", "def f() -> None:\n    g()\n"),
        ("x = [y async for y in z]\n", "x = [y for y in z]\n"),
        ("class AsyncBox:\n    '''An AsyncBox.'''\n", "class Box:\n    '''An Box.'''\n"),
        ("AsyncIterator = StopAsyncIteration\n", "Iterator = StopIteration\n"),
        ("if a:  # await it\n    b()\n\n\nc = 1\n", "if a:  # it\n    b()\n\n\nc = 1\n"),
    ],
)
def test_tokens(text: str, expected: str) -> None:
    assert converted(text) == expected
