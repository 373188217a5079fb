"""Which variables pass."""

from __future__ import annotations

from box_guest.shared.environment import MAX_VALUE, MAX_VARIABLES, filtered


def test_the_users_own_pass_and_the_loaders_do_not() -> None:
    env = {
        b"LANG": b"C.UTF-8",
        b"LC_ALL": b"C",
        b"TERM": b"xterm",
        b"COLORTERM": b"truecolor",
        b"MY_VAR1": b"\xff\xfe = anything",
        b"EMPTY": b"",
    }
    refused = {
        b"LD_PRELOAD": b"/evil",
        b"LD_LIBRARY_PATH": b"/evil",
        b"SSH_AUTH_SOCK": b"/x",
        b"BOX_ID": b"1",
        b"1X": b"",
        b"A-B": b"",
        b"": b"",
        b"A=B": b"",
        b"\xc3\xa9": b"",
        b"NUL": b"a\0b",
        b"LONG": b"x" * (MAX_VALUE + 1),
    }
    assert filtered(env | refused) == env


def test_there_is_an_end() -> None:
    assert len(filtered({b"V%d" % n: b"" for n in range(MAX_VARIABLES + 9)})) == MAX_VARIABLES
