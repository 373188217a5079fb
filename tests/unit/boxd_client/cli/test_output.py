"""What the command shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd_client.cli.output import Progress, format_size, format_span, print_table, printable

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 31, "2.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (61, "1m1s"), (7500, "2h5m"), (86_400, "1d"), (86_405, "1d")]
)
def test_spans(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_a_table_has_no_control_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    rows: Sequence[Sequence[object]] = [("a\x1b[31m", "running"), ("b", 5)]
    print_table(("NAME", "STATE"), rows)
    assert capsys.readouterr().out == "NAME       STATE\na\\x1b[31m  running\nb          5\n"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("x", 10) as progress:
        progress.advance(5)
    assert capsys.readouterr().err == ""


def test_printable() -> None:
    assert printable("é\t\r") == "é\\x09\\x0d"
