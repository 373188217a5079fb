"""Exec requests: what is read and what is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.commands.exec import (
    MAX_COMMAND,
    MAX_HEADER,
    ExecRequest,
    exit_code,
    parse_header,
    parse_plain,
)
from boxd.errors import BadRequest, TooLarge, Unavailable
from boxd.tunnel.channel import ExitStatus


def test_whole_header() -> None:
    line = b'{"cmd": "echo ok", "env": {"A_1": "x", "_": ""}, "timeout_s": 7, "later": [1]}'
    assert parse_header(line) == ExecRequest("echo ok", {"A_1": "x", "_": ""}, 7)


def test_defaults() -> None:
    assert parse_header(b'{"cmd": "true"}') == ExecRequest("true", {}, 300)
    assert parse_header(b'{"cmd": "true", "env": null, "timeout_s": null}').timeout_s == 300


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b'{"cmd": "a"} x', "JSON"),
        (b'{"cmd": NaN}', "NaN"),
        (b'{"cmd": "a", "x": -Infinity}', "Infinity"),
        (b'{"cmd": "a", "cmd": "b"}', "twice"),
        (b'{"cmd": "a", "env": {"A": "1", "A": "2"}}', "twice"),
        (b'{"cmd": "\xff"}', "UTF-8"),
        (b'{"cmd": "a", "x": ' + b"[" * 40 + b"]" * 40 + b"}", "nested"),
        (b"[" * 10_000 + b"]" * 10_000, "nested"),
        (b'{"cmd": "a", "x": ' + b"9" * 5000 + b"}", "JSON"),
        (b"{}", "cmd"),
        (b'{"cmd": ""}', "cmd"),
        (b'{"cmd": 1}', "cmd"),
        (b'{"cmd": ["a"]}', "cmd"),
        (b'{"cmd": "a\\u0000b"}', "NUL"),
        (b'{"cmd": "\\ud800"}', "surrogate"),
        (b'{"cmd": "a", "env": []}', "env"),
        (b'{"cmd": "a", "env": {"1A": "x"}}', "identifier"),
        (b'{"cmd": "a", "env": {"A B": "x"}}', "identifier"),
        (b'{"cmd": "a", "env": {"": "x"}}', "identifier"),
        (b'{"cmd": "a", "env": {"A\\n": "x"}}', "identifier"),
        ('{"cmd": "a", "env": {"É": "x"}}'.encode(), "identifier"),
        (b'{"cmd": "a", "env": {"A": 1}}', "string"),
        (b'{"cmd": "a", "env": {"A": "\\u0000"}}', "NUL"),
        (b'{"cmd": "a", "timeout_s": 0}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": -1}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": 86401}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": 9223372036854775808}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": "5"}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": 1.0}', "timeout_s"),
        (b'{"cmd": "a", "timeout_s": true}', "timeout_s"),
    ],
)
def test_bad_header_is_named(line: bytes, word: str) -> None:
    with pytest.raises(BadRequest, match=word):
        parse_header(line)


def test_limits_of_the_environment() -> None:
    many = {f"A{n}": "" for n in range(257)}
    with pytest.raises(BadRequest, match="257"):
        parse_header(json.dumps({"cmd": "a", "env": many}).encode())
    assert (
        len(
            parse_header(json.dumps({"cmd": "a", "env": dict(list(many.items())[1:])}).encode()).env
        )
        == 256
    )


def test_limits_of_the_header() -> None:
    padding = b" " * (MAX_HEADER - len(b'{"cmd": "a"}'))
    assert parse_header(b'{"cmd": "a"}' + padding).cmd == "a"
    with pytest.raises(BadRequest, match="longer"):
        parse_header(b'{"cmd": "a"}' + padding + b" ")


def test_plain_command() -> None:
    assert parse_plain("printf 'é\n'".encode()) == ExecRequest("printf 'é\n'")
    assert len(parse_plain(b"x" * MAX_COMMAND).cmd) == MAX_COMMAND
    with pytest.raises(TooLarge):
        parse_plain(b"x" * (MAX_COMMAND + 1))
    for bad in (b"", b"a\0b", b"\xff"):
        with pytest.raises(BadRequest):
            parse_plain(bad)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(line: bytes) -> None:
    for parse in (parse_header, parse_plain):
        with contextlib.suppress(BadRequest, TooLarge):
            assert parse(line).cmd


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z"), st.text("ab é", max_size=9)),
    st.integers(1, 86400),
)
def test_what_was_written_is_read(cmd: str, env: dict[str, str], timeout_s: int) -> None:
    line = json.dumps({"cmd": cmd, "env": env, "timeout_s": timeout_s}).encode()
    assert parse_header(line) == ExecRequest(cmd, env, timeout_s)


@pytest.mark.parametrize(
    ("code", "signal", "expected"),
    [(0, None, 0), (3, None, 3), (None, "TERM", 143), (None, "KILL", 137), (None, "ODD", 128)],
)
def test_exit_code(code: int | None, signal: str | None, expected: int) -> None:
    assert exit_code(ExitStatus(code, signal)) == expected


def test_no_status_means_that_the_box_went_away() -> None:
    with pytest.raises(Unavailable):
        exit_code(ExitStatus(None, None))
