"""What is read of a client's messages, and how much of them at most."""

from __future__ import annotations

import json

import pytest

from boxd.mcp.messages import wire


def _message(arguments: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "m", "params": {{"a": {arguments}}}}}'


@pytest.mark.parametrize("value", ["[]", "{}", "0", '""', "[[]]", "[0, 0]", '{"k": 0}', "null"])
@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_message_with_very_many_values_is_refused(value: str, encode: object) -> None:
    assert callable(encode)
    text = encode(_message("[" + ", ".join([value] * (wire.MAX_VALUES + 1)) + "]"))
    with pytest.raises(wire.InvalidMessage, match="values") as refused:
        wire.parse(text)
    assert refused.value.code == wire.INVALID_REQUEST


def test_a_message_with_very_many_members_is_refused() -> None:
    members = ", ".join(f'"{number}": 0' for number in range(wire.MAX_VALUES + 1))
    with pytest.raises(wire.InvalidMessage, match="values"):
        wire.parse(_message("{" + members + "}"))


@pytest.mark.parametrize(
    "content",
    [",", "[", "{", '"', "\\", '\\"', '",', '\\",[', '\\\\",', "\\\\\\", "\n", "é,\u2028["],
)
def test_the_content_of_strings_does_not_count(content: str) -> None:
    content *= 3 * wire.MAX_VALUES
    for ascii_only in (True, False):
        text = _message(json.dumps(content, ensure_ascii=ascii_only))
        assert wire.parse(text)["params"]["a"] == content


def test_many_strings_that_do_not_end_are_no_json() -> None:
    with pytest.raises(wire.InvalidMessage):
        wire.parse(_message('"' * 4 * wire.MAX_VALUES))
