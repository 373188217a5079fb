"""Box references."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names.reference import Reference, parse_reference
from tests.harness.strategies import NAMES
from tests.unit.boxd.names.refusal import value_or_refusal

ID = "0123456789abcdef0123456789abcdef"


@given(st.none() | NAMES, NAMES)
def test_what_is_written_is_read_back(workspace: str | None, name: str) -> None:
    reference = parse_reference(name if workspace is None else f"{workspace}/{name}")
    assert (reference.workspace, reference.name) == (workspace, name)
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("box1", Reference(None, "box1", None)),
        ("ws1/box1", Reference("ws1", "box1", None)),
        ("WS1/Box1", Reference("ws1", "box1", None)),
        ("beef", Reference(None, "beef", "beef")),
        ("BEEF", Reference(None, "beef", "beef")),
        ("ws1/beef", Reference("ws1", "beef", None)),
        ("a", Reference(None, "a", "a")),
        (ID, Reference(None, ID, ID)),
        (ID.upper(), Reference(None, ID, ID)),
        (ID + "0", Reference(None, ID + "0", None)),
    ],
)
def test_forms(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a/b/c", "web:img", "web^1h", "web+", "a b", "x" * 58, "é", "cli/a"],
)
def test_refusals(text: str) -> None:
    with pytest.raises(BadName):
        parse_reference(text)


@given(st.text(max_size=100) | st.text(alphabet="abcdef0123456789/-", max_size=70))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    reference = value_or_refusal(lambda: parse_reference(text))
    assert reference is None or parse_reference(str(reference)) == reference
