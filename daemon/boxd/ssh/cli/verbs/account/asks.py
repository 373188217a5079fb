"""`asks`: questions of programs in your boxes, and your answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply
from boxd.ssh.cli.table import format_span, table

if TYPE_CHECKING:
    import argparse


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id")
    parser.add_argument("text", nargs="+")


async def _ls(call: Call) -> Reply:
    views = await call.operations.asks.list_asks(call.principal)
    rows = [
        (
            view.ask.id[:SHORT_ID],
            view.box,
            format_span((call.now - view.ask.created).total_seconds()),
            view.ask.question,
            " | ".join(view.ask.options),
        )
        for view in views
    ]
    columns = ("ID", "BOX", "AGE", "QUESTION", "OPTIONS")
    return Reply([view.to_json() for view in views], table(columns, rows))


async def _answer(call: Call) -> Reply:
    answer = " ".join(call.args.text)
    ask = await call.operations.asks.answer_ask(call.principal, call.args.id, answer)
    document = {"id": ask.id, "state": "answered", "answer": ask.answer}
    return Reply(document, f"answered {ask.id[:SHORT_ID]}\n")


COMMANDS = (
    Command(("asks", "ls"), "list the open questions of programs in your boxes", "asks ls", _ls),
    Command(
        ("asks", "answer"),
        "answer a question; the program that asked continues",
        "asks answer 0f3a yes",
        _answer,
        _answer_arguments,
    ),
)
