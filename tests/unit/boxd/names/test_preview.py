"""Labels of preview hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names.preview import (
    MAX_PORT,
    PreviewLabel,
    format_preview_label,
    parse_port,
    parse_preview_label,
)
from boxd.names.reference import parse_reference
from tests.unit.boxd.names.refusal import value_or_refusal
from tests.unit.boxd.names.test_words import NAMES


@given(NAMES, st.integers(1, MAX_PORT))
def test_what_is_written_is_read_back(name: str, port: int) -> None:
    label = PreviewLabel(parse_reference(name), port)
    assert parse_preview_label(format_preview_label(label)) == label
    assert parse_preview_label(format_preview_label(label).upper()) == label


@pytest.mark.parametrize(
    ("label", "box", "port"),
    [("my-app-3000", "my-app", 3000), ("a-1", "a", 1), ("my-app-2-65535", "my-app-2", 65535)],
)
def test_the_box_is_all_before_the_last_hyphen(label: str, box: str, port: int) -> None:
    preview = parse_preview_label(label)
    assert (preview.reference.name, preview.port) == (box, port)


@pytest.mark.parametrize(
    "label",
    [
        *("", "web", "3000", "-3000", "web-", "web-0", "web-01", "web-65536", "web-+1"),
        *("web-\u0663", "a/b-1", "web--1", "a.b-1", "x" * 58 + "-65535"),
    ],
)
def test_refusals(label: str) -> None:
    with pytest.raises(BadName):
        parse_preview_label(label)


@given(st.text(max_size=80) | st.text(alphabet="ab-0123456789", max_size=70))
def test_any_label_is_read_or_refused(label: str) -> None:
    preview = value_or_refusal(lambda: parse_preview_label(label))
    assert preview is None or 1 <= preview.port <= MAX_PORT


def test_ports() -> None:
    assert parse_port("8080") == 8080
    with pytest.raises(BadName, match="is not a port"):
        parse_port("99999")
