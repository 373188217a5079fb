"""Execution of a console's command lines: choice of the command, input, own output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.ssh.cli.command import MAX_STDIN, Call, Command, Console, ExitStatus, Reply
from tests.harness.ssh.console import Typed, run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World


async def _size(call: Call) -> Reply:
    data = await call.stdin()
    return Reply(len(data), f"{len(data)} {data[:1]!r}\n")


async def _echo(call: Call) -> ExitStatus:
    while data := await call.stdio.read():
        await call.stdio.write(data)
    return ExitStatus(7)


TEST_CONSOLE = Console(
    "cli",
    (
        Command(("size",), "print the size of the input", "size", _size),
        Command(("echo",), "print the input", "echo", _echo),
    ),
)


def test_the_longest_match_wins_and_a_family_may_have_a_default() -> None:
    async def run(_call: Call) -> Reply:
        return Reply(None, "")

    family = Command(("share",), "share a box", "share web", run)
    create = Command(("share", "create"), "share a box", "share create web", run)
    console = Console("cli", (family, create))
    assert console.find(["share", "web"]) == (family, ["web"])
    assert console.find(["share", "create", "web"]) == (create, ["web"])


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("--help", "help"),
        ("-h rm", "help rm"),
        ("up --help", "help up"),
        ("up web -h", "help up"),
        ("snapshot fork -h", "help snapshot fork"),
        ("snapshot fork web copy --help", "help snapshot fork"),
        ("apikeys --help", "help apikeys"),
        ("nonsense --help", "help nonsense"),
    ],
)
async def test_help_is_also_an_option(world: World, typed: str, command: str) -> None:
    assert await run(world, typed) == await run(world, command)


async def test_after_two_dashes_help_is_a_plain_word(world: World) -> None:
    assert "no open question" in (await run(world, "asks answer abcd -- -h")).stderr


@pytest.mark.parametrize("pieces", [[], [b"one"], [b"on", b"e", b"\xff"], [b"x" * MAX_STDIN]])
async def test_a_command_gets_its_whole_input(world: World, pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    result = await run(world, "size", stdio=Typed(pieces), console=TEST_CONSOLE)
    assert (result.status, result.stdout) == (0, f"{len(content)} {content[:1]!r}\n")


async def test_input_is_rejected_on_a_terminal_and_above_its_limit(world: World) -> None:
    typed = Typed([b"a secret"], terminal=True)
    result = await run(world, "size", stdio=typed, console=TEST_CONSOLE)
    assert (result.status, result.stdout) == (2, "")
    assert "without -t" in result.stderr
    assert typed.pieces
    endless = Typed([b"x"] * (MAX_STDIN + 2))
    result = await run(world, "size", stdio=endless, console=TEST_CONSOLE)
    assert (result.status, result.stdout) == (2, "")
    assert f"longer than {MAX_STDIN} bytes" in result.stderr
    assert endless.pieces


async def test_a_command_may_write_its_output_itself(world: World) -> None:
    typed = Typed([b"one", b"two"])
    result = await run(world, "echo", stdio=typed, console=TEST_CONSOLE)
    assert (result.stdout, result.stderr, result.status) == ("", "", 7)
    assert typed.written == b"onetwo"
