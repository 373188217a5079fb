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


@pytest.mark.parametrize(
    ("message", "parameters"),
    [
        ({"type": "workspace", "verb": "info", "more": 1}, {"verb": "info"}),
        ({"type": "pin", "for_s": 1, "why": ""}, {"for_s": 1, "why": ""}),
        (
            {"type": "ask", "question": "q" * 2000, "options": ["o" * 200] * 20},
            {"question": "q" * 2000, "options": ["o" * 200] * 20},
        ),
        ({"type": "ask_state", "ask": "0f3a"}, {"ask": "0f3a"}),
        ({"type": "trash_list"}, {"path": "", "cursor": None, "limit": 200}),
        (
            {"type": "trash_list", "path": "a\udcff", "cursor": "1", "limit": 1},
            {"path": "a\udcff", "cursor": "1", "limit": 1},
        ),
        (
            {"type": "trash_restore", "path": "é" * 2048, "to": "b"},
            {"path": "é" * 2048, "number": None, "to": "b"},
        ),
        (
            {"type": "trash_restore", "number": 10**18 - 1},
            {"path": None, "number": 10**18 - 1, "to": None},
        ),
        (
            {"type": "pin", "for_s": 604800, "why": "ü" * 200, "id": 4},
            {"for_s": 604800, "why": "ü" * 200},
        ),
        ({"type": "unpin", "id": 3}, {}),
        ({"type": "auto_suspend", "on": False}, {"on": False}),
        ({"type": "life"}, {}),
    ],
    ids=lambda value: value.get("type", "") if isinstance(value, dict) else "",
)
def test_parameters_of_requests(message: dict[str, object], parameters: dict[str, object]) -> None:
    assert protocol.request_parameters(message) == parameters


@pytest.mark.parametrize(
    "message",
    [
        {"type": "workspace"},
        {"type": "workspace", "verb": "format"},
        *({"type": "ask", "question": wrong, "options": []} for wrong in (None, "", "q" * 2001)),
        *({"type": "ask", "question": wrong, "options": []} for wrong in ("a\0b", "\ud800")),
        *(
            {"type": "ask", "question": "q", "options": wrong}
            for wrong in (None, "yes", [""], [1], ["o" * 201], ["o"] * 21, ["\0"])
        ),
        *({"type": "ask_state", "ask": wrong} for wrong in (None, 7, "0" * 65)),
        *({"type": "trash_list", "path": wrong} for wrong in (7, "é" * 2049, "\ud800", "x" * 5000)),
        *({"type": "trash_list", "limit": wrong} for wrong in (0, 201, True, "1", 1.0)),
        *({"type": "trash_list", "cursor": wrong} for wrong in (7, "0" * 1025)),
        *({"type": "trash_restore", "number": wrong} for wrong in (0, 10**18, True, "1")),
        *({"type": "trash_restore", "path": "a", "to": wrong} for wrong in (7, "\udbff")),
        {"type": "trash_restore"},
        {"type": "trash_restore", "path": "a", "number": 1},
        {"type": "workspace", "verb": ["mount"]},
        *({"type": "pin", "for_s": wrong, "why": ""} for wrong in (0, -1, 604801, True, "2h", 2.5)),
        {"type": "pin", "why": ""},
        *({"type": "pin", "for_s": 60, "why": wrong} for wrong in ("x" * 201, "a\nb", "\x1b[31m")),
        {"type": "pin", "for_s": 60, "why": None},
        {"type": "auto_suspend"},
        {"type": "auto_suspend", "on": 1},
        {"type": "auto_suspend", "on": "off"},
    ],
    ids=str,
)
def test_malformed_requests(message: dict[str, object]) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.request_parameters(message)


STORE: dict[str, object] = dict.fromkeys(
    ("endpoint", "bucket", "prefix", "region", "access_key", "secret_key"), "x"
)
CREDENTIALS = {"volume": "v", "schema": "s", "meta_dsn": "d", "store": STORE}


def test_credentials_of_a_drive_are_checked() -> None:
    message = {"type": protocol.DRIVE_MOUNT, "credentials": {**CREDENTIALS, "more": 1}}
    assert protocol.drive_request(message) == CREDENTIALS
    for wrong in (
        None,
        {**CREDENTIALS, "store": "x"},
        {**CREDENTIALS, "schema": ""},
        {**CREDENTIALS, "store": {**STORE, "secret_key": 7}},
    ):
        with pytest.raises(protocol.ProtocolError, match=r"^the credentials .* are incomplete$"):
            protocol.drive_request({"type": protocol.DRIVE_MOUNT, "credentials": wrong})


@given(st.dictionaries(st.text(), JSON), JSON, JSON, JSON)
def test_what_an_agent_tells_of_its_drive_is_plain_or_refused(
    health: dict[str, object], restarts: object, holders: object, error: object
) -> None:
    told = {"mounted": 1, "health": health, "restarts": restarts, "holders": holders}
    try:
        state = protocol.drive_state({**told, "error": error})
    except protocol.ProtocolError:
        return
    assert state["mounted"] is False
    texts = [state["error"], *state["holders"], *state["health"]]
    texts += [value for value in state["health"].values() if isinstance(value, str)]
    assert all(len(text) <= protocol.MAX_DRIVE_TEXT and text.isprintable() for text in texts)
    protocol.encode({"type": "reply", "result": state})
