"""Names of boxes, workspaces and keys, and foreign text in errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names import words
from tests.harness.strategies import NAMES
from tests.unit.boxd.names.refusal import value_or_refusal


@given(NAMES)
def test_names_are_read_as_they_are_and_case_is_folded(name: str) -> None:
    assert words.parse_name(name) == name
    assert words.parse_workspace(name.upper()) == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "missing"),
        ("-a", "not valid"),
        ("a-", "not valid"),
        ("a_b", "not valid"),
        ("a.b", "not valid"),
        ("\u212aey", "not valid"),  # the Kelvin sign, whose lower case is a plain k
        ("x" * 58, "at most 57"),
        ("cli", "reserved"),
        ("Images", "reserved"),
        ("image", "reserved"),
        ("sudo", "reserved"),
        ("jump", "reserved"),
        ("_", "reserved"),
        ("session-1", "reserved"),
        ("svcs_1", "reserved"),
    ],
)
def test_bad_names_are_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(BadName, match=says) as refusal:
        words.parse_name(text, "profile name")
    assert "profile name" in str(refusal.value)


def test_the_longest_name_fits() -> None:
    assert words.parse_name("x" * words.MAX_NAME) == "x" * 57


@pytest.mark.parametrize("name", ["laptop", "CI.runner_2", "a", "x" * 64])
def test_key_names(name: str) -> None:
    assert words.parse_key_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "x" * 65, "é"])
def test_bad_key_names(name: str) -> None:
    with pytest.raises(BadName, match="for example 'laptop'"):
        words.parse_key_name(name)


@given(st.text(max_size=200))
def test_shown_text_is_one_short_printable_line(text: str) -> None:
    shown = words.shown(text)
    assert shown.isprintable()
    assert shown.startswith("'")
    assert shown.endswith("'")


def test_shown_text_keeps_what_can_be_printed_and_escapes_the_rest() -> None:
    assert words.shown("wéb") == "'wéb'"
    assert words.shown("a\x1b[2J\udcff") == "'a\\x1b[2J\\udcff'"
    assert len(words.shown("x" * 500)) == 82


@given(st.text(max_size=100))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    name = value_or_refusal(lambda: words.parse_name(text))
    assert name is None or (words.is_name(name) and not words.is_reserved(name))
