"""How a command line of a console is run: which command it is, its input, its own output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.ssh.cli.command import MAX_STDIN, Call, Command, Console, ExitStatus, Reply
from tests.harness.console import Typed, run

if TYPE_CHECKING:
    from tests.harness.world import World


async def _size(call: Call) -> Reply:
    data = await call.stdin()
    return Reply(len(data), f"{len(data)} {data[:1]!r}\n")


async def _echo(call: Call) -> ExitStatus:
    while data := await call.stdio.read():
        await call.stdio.write(data)
    return ExitStatus(7)


READING = Console(
    "cli",
    (
        Command(("size",), "tell its input's size", "size", _size),
        Command(("echo",), "write its input", "echo", _echo),
    ),
)


def test_the_longest_words_win_and_a_family_may_have_a_default() -> None:
    async def run(_call: Call) -> Reply:
        return Reply(None, "")

    family = Command(("share",), "share a box", "share web", run)
    create = Command(("share", "create"), "share a box", "share create web", run)
    console = Console("cli", (family, create))
    assert console.find(["share", "web"]) == (family, ["web"])
    assert console.find(["share", "create", "web"]) == (create, ["web"])


@pytest.mark.parametrize(
    ("typed", "asked"),
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
async def test_help_is_had_as_an_option_too(world: World, typed: str, asked: str) -> None:
    assert await run(world, typed) == await run(world, asked)


async def test_what_stands_behind_two_dashes_asks_for_no_help(world: World) -> None:
    assert "no open question" in (await run(world, "asks answer abcd -- -h")).stderr


@pytest.mark.parametrize("pieces", [[], [b"one"], [b"on", b"e", b"\xff"], [b"x" * MAX_STDIN]])
async def test_a_command_gets_all_of_its_input(world: World, pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    result = await run(world, "size", stdio=Typed(pieces), console=READING)
    assert (result.status, result.stdout) == (0, f"{len(whole)} {whole[:1]!r}\n")


async def test_input_is_refused_on_a_terminal_and_beyond_its_limit(world: World) -> None:
    typed = Typed([b"a secret"], terminal=True)
    shown = await run(world, "size", stdio=typed, console=READING)
    assert (shown.status, shown.stdout) == (2, "")
    assert "without -t" in shown.stderr
    assert typed.pieces
    endless = Typed([b"x"] * (MAX_STDIN + 2))
    refused = await run(world, "size", stdio=endless, console=READING)
    assert (refused.status, refused.stdout) == (2, "")
    assert f"longer than {MAX_STDIN} bytes" in refused.stderr
    assert endless.pieces


async def test_a_command_may_write_its_output_itself(world: World) -> None:
    typed = Typed([b"one", b"two"])
    result = await run(world, "echo", stdio=typed, console=READING)
    assert (result.stdout, result.stderr, result.status) == ("", "", 7)
    assert typed.written == b"onetwo"
