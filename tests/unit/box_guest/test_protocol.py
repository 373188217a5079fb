"""Lines of the control channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from box_guest import protocol

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=5))
def test_what_is_encoded_is_decoded(kind: str, fields: dict[str, object]) -> None:
    message = {**fields, "type": kind}
    line = protocol.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


@given(st.binary())
def test_any_bytes_are_a_message_or_an_error(line: bytes) -> None:
    try:
        message = protocol.decode(line)
    except protocol.ProtocolError:
        return
    assert isinstance(message["type"], str)


def test_over_long_lines_are_refused_both_ways() -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.encode({"type": "x", "text": "y" * protocol.MAX_LINE})
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(b'{"type": "' + b"y" * protocol.MAX_LINE + b'"}')


def test_deep_nesting_is_an_error() -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(b'{"type": ' + b"[" * 30000)
