"""Prompts at a terminal: editing of a hidden line, and answers to questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.ssh.cli.command import MAX_STDIN, UsageError
from boxd.ssh.cli.prompt import confirm, read_hidden_line
from tests.harness.ssh.console import Typed, run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World


@pytest.mark.parametrize(
    ("pieces", "value"),
    [
        ([b"a secret\r"], b"a secret"),
        ([b"a", b" secret", b"\n", b"rest"], b"a secret"),
        ([b"ab\x7f\x7f\x7fc\r"], b"c"),
        (["aé\x08b\r".encode()], b"ab"),
        ([b"wrong\x15right\r"], b"right"),
        ([b"end\x04"], b"end"),
        ([b"\r"], b""),
    ],
)
async def test_a_hidden_line_can_be_edited(pieces: list[bytes], value: bytes) -> None:
    typed = Typed(pieces, terminal=True)
    assert await read_hidden_line(typed, "secret") == value
    assert typed.written == b"secret (not shown): \r\n"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"half\x03"], "interrupted"),
        ([b"half"], "ended before Enter"),
        ([], "ended before Enter"),
        ([b"x" * (MAX_STDIN + 1)], "longer than"),
    ],
)
async def test_an_incomplete_line_is_rejected(pieces: list[bytes], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await read_hidden_line(Typed(pieces, terminal=True), "secret")


async def test_a_client_that_disconnects_within_the_line_changes_no_secret(world: World) -> None:
    await run(world, "secret set TOKEN", stdio=Typed([b"whole\r"], terminal=True))
    result = await run(world, "secret set TOKEN", stdio=Typed([b"ha"], terminal=True))
    assert result.status == UsageError.exit_status
    assert "the secret is unchanged" in result.stderr
    assert "whole" not in (await run(world, "secret ls")).stdout


@pytest.mark.parametrize(
    ("typed", "echo", "answer"),
    [
        ("nx\x7fo\r", "nx\b \bo", False),
        ("\x7fyé\x7f\r", "yé\b \b", True),
        ("né\x15y\r", "né\b \b\b \by", True),
    ],
)
async def test_the_terminal_echoes_the_edits_of_an_answer(
    typed: str, echo: str, *, answer: bool
) -> None:
    keys = Typed([typed.encode()], terminal=True)
    assert await confirm(keys, "Remove it?", "box") is answer
    assert keys.written == f"Remove it? [y/N] {echo}\r\n".encode()
