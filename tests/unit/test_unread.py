"""Commands whose reader goes away end in silence, as `ls | head` does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LONG = {
    "wrkfs": "from wrkfs import cli as at; name = '_main'; from wrkfs.cli import main",
    "boxd": "from boxd.cli import main as at; name = '_main'; from boxd.cli.main import main",
    "box-guest": "from box_guest import cli as at; name = '_main'; from box_guest.cli import main",
}
"""Where each program's commands begin."""
COMMANDS = {
    "wrkfs help": ["-m", "wrkfs.cli", "--help"],
    "boxd openapi": ["-m", "boxd", "openapi"],
    "boxd help": ["-m", "boxd", "serve", "--help"],
    "box-guest help": ["-m", "box_guest.cli", "--help"],
}


def unread(arguments: list[str]) -> tuple[int, bytes]:
    """Status and stderr of a program whose standard output nobody has open for reading."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_nobody_reads_is_quiet(arguments: list[str]) -> None:
    assert unread(arguments) == (141, b"")


@pytest.mark.parametrize("lines", [1, 100_000])
@pytest.mark.parametrize("program", LONG.values(), ids=LONG)
def test_output_of_any_length_may_be_left_unread(program: str, lines: int) -> None:
    """It fails at the last flush when it is short, and on the way when it is long."""
    text = (
        f"{program}; import sys\n"
        f"def shown(*_):\n    for _ in range({lines}): print('a line')\n    return 0\n"
        "setattr(at, name, shown)\n"
        "sys.exit(main())\n"
    )
    assert unread(["-c", text]) == (141, b"")
