"""Tables, command lines and the registry of commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.ssh.cli.command import Door, UsageError
from boxd.ssh.cli.registry import CLI
from boxd.ssh.cli.table import cell, listing, moment, remaining, size, span, table


def test_columns_are_aligned_and_lines_have_no_trailing_space() -> None:
    text = table(("NAME", "N"), [("a", 1), ("longer", None), ("x", 2.0), ("y", 0.5)])
    assert text == "NAME    N\na       1\nlonger  -\nx       2\ny       0.5\n"
    assert table(("NAME",), []) == "NAME\n"


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_no_cell_can_move_the_cursor(rows: list[tuple[str, str]]) -> None:
    lines = table(("A", "B"), rows).split("\n")
    assert len(lines) == len(rows) + 2
    assert all(line.isprintable() for line in lines)


def test_listing() -> None:
    assert listing([("a", 1), ("long", "x\ny")]) == "a:    1\nlong: x\\ny\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3600, "1h"),
        (3661, "1h1m"),
        (86_400 + 61, "1d"),
        (90_061, "1d1h"),
        (864_000, "10d"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**2, "5.0 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (2048 * 1024**4, "2048.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_moments() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert moment(when) == "2026-01-02T03:04:05Z"
    assert moment(None) is None
    assert remaining(when + timedelta(hours=2), when) == "in 2h"
    assert remaining(when - timedelta(hours=2), when) == "now"


def test_cells() -> None:
    assert [cell(value) for value in (None, "", 0, 1.0, 1.5, "a\x07")] == (
        ["-", "-", "0", "1", "1.5", "a\\x07"]
    )


def test_door_quotes_what_a_shell_would_read() -> None:
    door = Door("host", 22, "SHA256:x", "")
    assert door.ssh("my-web", "ls") == "ssh my-web@host ls"
    assert Door("host", 2222, "", "").ssh("web+^1h") == "ssh -p 2222 'web+^1h'@host"


def test_door_spells_out_the_command_that_an_error_names() -> None:
    door = Door("host", 2222, "", "")
    assert door.spelled("no box 'x'; see: ls") == "no box 'x'; see: ssh -p 2222 cli@host ls"
    assert door.spelled("busy") == "busy"


def test_door_shows_the_way_into_a_box() -> None:
    door = Door("host", 2222, "", "")
    assert door.box("ws1/web", confidential=True) == "ssh -J jump@host:2222 root@ws1/web"
    assert door.box("ws1/web", confidential=False) == "ssh -p 2222 'ws1/web'@host"
    assert Door("h", 22, "", "").box("web", confidential=True) == "ssh -J jump@h root@web"
    assert Door("::1", 22, "", "").named("use ssh -J jump@HOST root@web") == (
        "use ssh -J jump@[::1] root@web"
    )


def test_every_command_is_complete_and_has_its_own_words() -> None:
    assert len({command.words for command in CLI.commands}) == len(CLI.commands)
    for command in CLI.commands:
        assert command.example.startswith(command.name)
        assert command.synopsis.startswith(command.name)
        assert "[--json]" in command.synopsis
        assert command.about


@pytest.mark.parametrize("command", CLI.commands, ids=lambda command: command.name)
def test_usage_errors_say_how_it_is_written(command: object) -> None:
    (found,) = [one for one in CLI.commands if one is command]
    with pytest.raises(UsageError, match="usage: "):
        found.parser().parse_args(["--no-such-option"])
    with pytest.raises(UsageError):
        found.parser().parse_args(["--jso"])
