"""What a command shows."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import TYPE_CHECKING

from rich.console import Console

from boxd import log
from boxd.cli.printing import showing

if TYPE_CHECKING:
    import pytest


def test_where_lines_are_kept_a_step_is_shown_once() -> None:
    out = io.StringIO()
    with showing(Console(file=out)) as progress:
        for percent in range(45, 90):
            progress(f"image debian: {percent:3.0f} % installing packages")
        progress("image debian: 100 % done")
    assert out.getvalue() == "boxd: image debian: installing packages\nboxd: image debian: done\n"


def test_log_lines_do_not_tear_a_spinner(capsys: pytest.CaptureFixture[str]) -> None:
    """The spinner stands in the place of stderr while it turns."""
    log.setup(verbose=False)
    inside = io.StringIO()
    with contextlib.redirect_stderr(inside):
        logging.getLogger("boxd.test").info("while it turns")
    logging.getLogger("boxd.test").info("after it")
    assert "while it turns" in inside.getvalue()
    written = capsys.readouterr().err
    assert "after it" in written
    assert "while" not in written
