"""Tables, ssh command lines in texts, and the registry of commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.ssh.cli.command import Command, Endpoint, UsageError
from boxd.ssh.cli.registry import CLI
from boxd.ssh.cli.table import (
    cell,
    format_size,
    format_span,
    format_time,
    key_value_lines,
    table,
    time_until,
)


def test_columns_are_aligned_and_lines_have_no_trailing_space() -> None:
    text = table(("NAME", "N"), [("a", 1), ("longer", None), ("x", 2.0), ("y", 0.5)])
    assert text == "NAME    N\na       1\nlonger  -\nx       2\ny       0.5\n"
    assert table(("NAME",), []) == "NAME\n"


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_no_cell_can_move_the_cursor(rows: list[tuple[str, str]]) -> None:
    lines = table(("A", "B"), rows).split("\n")
    assert len(lines) == len(rows) + 2
    assert all(line.isprintable() for line in lines)


def test_key_value_lines() -> None:
    assert key_value_lines([("a", 1), ("long", "x\ny")]) == "a:    1\nlong: x\\ny\n"


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
    assert format_span(seconds) == text


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
    assert format_size(count) == text


def test_moments() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert format_time(when) == "2026-01-02T03:04:05Z"
    assert format_time(None) is None
    assert time_until(when + timedelta(hours=2), when) == "in 2h"
    assert time_until(when - timedelta(hours=2), when) == "now"


def test_cells() -> None:
    assert [cell(value) for value in (None, "", 0, 1.0, 1.5, "a\x07")] == (
        ["-", "-", "0", "1", "1.5", "a\\x07"]
    )


def test_ssh_commands_quote_user_names_for_the_shell() -> None:
    endpoint = Endpoint("host", 22, "SHA256:x", "")
    assert endpoint.ssh_command("my-web", "ls") == "ssh my-web@host ls"
    assert Endpoint("host", 2222, "", "").ssh_command("web+^1h") == "ssh -p 2222 'web+^1h'@host"


def test_errors_outside_the_cli_name_the_whole_command() -> None:
    endpoint = Endpoint("host", 2222, "", "")
    text = endpoint.with_cli_command("no box 'x'; see: ls")
    assert text == "no box 'x'; see: ssh -p 2222 cli@host ls"
    assert endpoint.with_cli_command("busy") == "busy"


def test_box_commands_lead_into_the_box() -> None:
    endpoint = Endpoint("host", 2222, "", "")
    command = endpoint.box_command("ws1/web", confidential=True)
    assert command == "ssh -J jump@host:2222 root@ws1/web"
    command = endpoint.box_command("ws1/web", confidential=False)
    assert command == "ssh -p 2222 'ws1/web'@host"
    command = Endpoint("h", 22, "", "").box_command("web", confidential=True)
    assert command == "ssh -J jump@h root@web"
    text = Endpoint("::1", 22, "", "").with_jump_host("use ssh -J jump@HOST root@web")
    assert text == "use ssh -J jump@[::1] root@web"


def test_every_command_is_complete_and_has_unique_words() -> None:
    assert len({command.words for command in CLI.commands}) == len(CLI.commands)
    for command in CLI.commands:
        assert command.example.startswith(command.name)
        assert command.synopsis.startswith(command.name)
        assert "[--json]" in command.synopsis
        assert command.about


@pytest.mark.parametrize("command", CLI.commands, ids=lambda command: command.name)
def test_usage_errors_show_the_syntax(command: Command) -> None:
    with pytest.raises(UsageError, match="usage: "):
        command.parser().parse_args(["--no-such-option"])
    with pytest.raises(UsageError):
        command.parser().parse_args(["--jso"])
