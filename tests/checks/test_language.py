"""Plain English: no file gains sentences or names of the kinds that `language` counts."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from tests.checks.language import ALLOWED, findings, sentences


def test_no_file_gains_unclear_language() -> None:
    allowed = json.loads(ALLOWED.read_text(encoding="utf-8"))
    by_file = defaultdict(list)
    for rule, name, line, text in findings():
        by_file[rule, name].append(f"{name}:{line}: {rule}: {text}")
    unclear = [
        text
        for (rule, name), texts in by_file.items()
        if len(texts) > allowed.get(rule, {}).get(name, 0)
        for text in texts
    ]
    assert not unclear


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two words.", ["One.", "Two words."]),
        ("One line\ngoes on.", ["One line goes on."]),
        ("- an item\n- another", ["an item", "another"]),
        ("| a | b. c |", ["a", "b.", "c"]),
        ("Before.\n```sh\ncode. more\n```\nAfter.", ["Before.", "After."]),
    ],
)
def test_sentences_of_markdown(text: str, expected: list[str]) -> None:
    assert [sentence for _, sentence in sentences(text)] == expected
