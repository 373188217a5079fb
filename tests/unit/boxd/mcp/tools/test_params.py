"""Arguments of tools: what their schema says is what is checked, and no value is repeated."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.commands.output import whole_characters
from boxd.errors import BadRequest
from boxd.mcp.tools.params import BadArguments, Param, check_arguments, schema_of
from boxd.mcp.tools.registry import BY_NAME, TOOLS
from boxd.mcp.tools.shapes import decode, encode

# What clients check with; it has no types.
jsonschema: Any = importlib.import_module("jsonschema")

PARAMS = (
    Param("name", "string", "a name", required=True, minimum=1, maximum=5),
    Param("count", "integer", "a number", default=2, minimum=0, maximum=9),
    Param("really", "boolean", "yes", default=False),
    Param("more", "strings", "some"),
    Param("env", "environment", "variables"),
    Param("kind", "string", "one of", default="a", choices=("a", "b")),
)


def test_what_is_left_out_has_its_default() -> None:
    assert check_arguments(PARAMS, {"name": "x", "more": None}) == {
        "name": "x",
        "count": 2,
        "really": False,
        "more": None,
        "env": None,
        "kind": "a",
    }


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({}, "name is missing"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "hidden"}, "name must have at most 5 characters"),
        ({"name": "\ud800"}, "name must not contain half of a surrogate pair"),
        ({"name": "x", "count": 10}, "count must be at most 9"),
        ({"name": "x", "count": -1}, "count must be at least 0"),
        ({"name": "x", "count": "hidden"}, "count must be a whole number"),
        ({"name": "x", "count": 1.5}, "count must be a whole number"),
        ({"name": "x", "really": 1}, "really must be true or false"),
        ({"name": "x", "more": "hidden"}, "more must be a list of strings"),
        ({"name": "x", "more": [1]}, "every item of more must be a string"),
        ({"name": "x", "more": ["a"] * 257}, "more must have at most 256 entries"),
        ({"name": "x", "env": ["hidden"]}, "env must be an object of strings"),
        ({"name": "x", "env": {"A-B": ""}}, "every key of env must be a shell identifier"),
        ({"name": "x", "env": {"A": {"hidden": 1}}}, "every value of env must be a string"),
        ({"name": "x", "kind": "hidden"}, "kind must be one of: a, b"),
        ({"name": "x", "hidden": 1}, "unknown arguments; this tool takes: name, count"),
    ],
)
def test_refusals_name_the_argument_and_not_its_value(given_: dict[str, object], text: str) -> None:
    with pytest.raises(BadArguments) as refused:
        check_arguments(PARAMS, given_)
    assert str(refused.value).startswith(text)
    assert "hidden" not in str(refused.value)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert check_arguments(PARAMS, {"name": "x", "count": 3.0})["count"] == 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {}, optional={param.name: _JSON | st.just("a") | st.just(5) for param in PARAMS}
    )
)
def test_the_schema_allows_what_is_allowed(given_: dict[str, object]) -> None:
    # null is the same as nothing here, which no schema says.
    meant = {name: value for name, value in given_.items() if value is not None}
    valid = jsonschema.Draft202012Validator(schema_of(PARAMS)).is_valid(meant)
    try:
        check_arguments(PARAMS, meant)
    except BadArguments:
        allowed = False
    else:
        allowed = True
    assert allowed == valid


def test_all_schemas_are_some() -> None:
    for tool in TOOLS:
        jsonschema.Draft202012Validator.check_schema(schema_of(tool.params))
        jsonschema.Draft202012Validator.check_schema(tool.output())
        assert tool.optional <= set(tool.result)
        assert BY_NAME[tool.alias] is BY_NAME[tool.name] is tool


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    text, encoding = encode(data)
    assert decode(text, encoding) == data


def test_what_is_no_base64_is_told() -> None:
    with pytest.raises(BadRequest):
        decode("!", "base64")


@given(st.text(), st.integers(0, 20))
def test_a_piece_of_text_ends_with_a_whole_character(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    whole = whole_characters(data)
    assert data.startswith(whole)
    assert len(data) - len(whole) <= 3
    whole.decode()
