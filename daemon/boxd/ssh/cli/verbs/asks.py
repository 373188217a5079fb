"""`asks`: questions of programs in your boxes, and your answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply
from boxd.ssh.cli.table import span, table

if TYPE_CHECKING:
    import argparse


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id")
    parser.add_argument("text", nargs="+")


async def _ls(call: Call) -> Reply:
    found = await call.operations.asks.list_asks(call.principal)
    rows = [
        (
            one.ask.id[:SHORT_ID],
            one.box,
            span((call.now - one.ask.created).total_seconds()),
            one.ask.question,
            " | ".join(one.ask.options),
        )
        for one in found
    ]
    columns = ("ID", "BOX", "AGE", "QUESTION", "OPTIONS")
    return Reply([one.to_json() for one in found], table(columns, rows))


async def _answer(call: Call) -> Reply:
    answer = " ".join(call.args.text)
    ask = await call.operations.asks.answer_ask(call.principal, call.args.id, answer)
    document = {"id": ask.id, "state": "answered", "answer": ask.answer}
    return Reply(document, f"answered {ask.id[:SHORT_ID]}\n")


COMMANDS = (
    Command(("asks", "ls"), "list what programs in your boxes ask you", "asks ls", _ls),
    Command(
        ("asks", "answer"),
        "answer a question; the program that asked goes on",
        "asks answer 0f3a yes",
        _answer,
        _answer_arguments,
    ),
)
