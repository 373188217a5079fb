"""`ask` and `answer`: questions to the owner, and their answers."""

from __future__ import annotations

from typing import Any

from boxd.errors import BadRequest
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import STRING
from boxd.mcp.tools.tool import Call, Tool
from boxd.operations.asks import MAX_WAIT_S


async def _ask(call: Call) -> dict[str, Any]:
    question, ask_id, wait_s = (call.args[name] for name in ("question", "id", "wait_s"))
    if (question is None) is (ask_id is None):
        raise BadRequest("give a question, or the id of an earlier question, but not both")
    if ask_id is not None:
        result = await call.operations.asks.wait_ask(call.principal, ask_id, wait_s)
    else:
        options = call.args["options"] or ()
        result = await call.operations.asks.ask(
            call.principal, question, options, box=call.args["box"], wait_s=wait_s
        )
    return result.to_json()


async def _answer(call: Call) -> dict[str, Any]:
    ask = await call.operations.asks.answer_ask(
        call.principal, call.args["id"], call.args["answer"]
    )
    return {"id": ask.id, "state": "answered"}


TOOLS = (
    Tool(
        "ask",
        "Ask the owner a question",
        "Ask the owner a question. The owner answers with the tool `answer` or over SSH. With "
        "`wait_s`, wait for the answer. The resource svc://asks lists the open questions; pass the "
        "`id` of one to wait for it again.",
        _ask,
        (
            Param("question", "string", "the question"),
            Param("options", "strings", "the answers to choose from (default: any text)"),
            Param("box", "string", "the box that the question is about"),
            Param(
                "wait_s",
                "integer",
                "seconds to wait for the answer",
                default=0,
                minimum=0,
                maximum=MAX_WAIT_S,
            ),
            Param("id", "string", "the id of an earlier question, instead of a new question"),
        ),
        {"id": STRING, "state": STRING, "answer": STRING},
        frozenset({"answer"}),
    ),
    Tool(
        "answer",
        "Answer a question",
        "Answer an open question. Only the first answer counts.",
        _answer,
        (
            Param("id", "string", "the id of the question, or the beginning of it", required=True),
            Param(
                "answer",
                "string",
                "the answer; one of the options if the question has options",
                required=True,
            ),
        ),
        {"id": STRING, "state": STRING},
    ),
)
