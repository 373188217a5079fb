"""Output for the operator becomes records if the log is in JSON."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from boxd import log
from boxd.cli.printing import Steps, refused, say
from boxd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where JSON lines go; logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    made = io.StringIO()
    log.setup(verbose=False, stream=made, is_json=True)
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def messages(stream: io.StringIO) -> list[tuple[str, str]]:
    """The level and message of each record."""
    records = map(json.loads, stream.getvalue().splitlines())
    return [(record["level"], record["message"]) for record in records]


def test_lines_and_steps_are_records_even_on_a_terminal(stream: io.StringIO) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True)
    steps = Steps(console)
    with steps:
        steps("unpacking 10 %")
        steps("unpacking 20 %")
        steps("starting")
    say(console, "ready")
    assert messages(stream) == [("INFO", "unpacking"), ("INFO", "starting"), ("INFO", "ready")]
    assert terminal.getvalue() == ""


def test_a_refusal_is_a_record(stream: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> int:
        raise BadRequest("password=hunter2 is not HOST:PORT")

    assert refused(refuse) == 2
    assert messages(stream) == [("ERROR", "password=*** is not HOST:PORT")]
    assert capsys.readouterr().err == ""
