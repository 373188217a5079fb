"""Programs that are loaded once and forked for each start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.harness.nursery import Nursery

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROGRAM = "tests.unit.telling"


def test_a_fork_is_as_if_the_program_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Nursery(PROGRAM)
    reader, writer = os.pipe()
    os.write(writer, b"passed on")
    os.close(writer)
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("WORD", "as the test has it")
        with (tmp_path / "log").open("wb") as log:
            started = made.start(
                [str(reader), "two words"],
                log=log.fileno(),
                out=subprocess.PIPE,
                pass_fds=(reader,),
                new_session=True,
            )
        assert started.stdout is not None
        with started.stdout as out:
            told = json.load(out)
        assert started.wait(60) == 3
    finally:
        os.close(reader)
        made.close()
    found = set(told.pop("descriptors")) - {0, 1, 2, reader}
    assert len(found) == 1, "that of the listing"
    assert told == {
        "arguments": [str(reader), "two words"],
        "line": f"{sys.executable} -m {PROGRAM} {reader} two words",
        "directory": str(tmp_path),
        "word": "as the test has it",
        "parent": os.getpid(),
        "leads": True,
        "input": "",
        "passed": "passed on",
    }
    assert (tmp_path / "log").read_text() == "an error\n"


def test_what_was_started_outlives_the_nursery_and_can_be_killed(tmp_path: Path) -> None:
    made = Nursery(PROGRAM)
    reader, writer = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        started = made.start([str(reader)], log=log.fileno(), pass_fds=(reader,))
    os.close(reader)
    made.close()
    assert started.poll() is None, "it waits for bytes of the pipe"
    started.kill()
    assert started.wait(60) == -signal.SIGKILL
    started.kill()
    os.close(writer)
