"""Questions to the owner, and their answers."""

from __future__ import annotations

from typing import Any

from boxd.errors import BadRequest
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import STRING
from boxd.mcp.tools.tool import Call, Tool
from boxd.operations.asks import MAX_WAIT_S


async def _ask(call: Call) -> dict[str, Any]:
    question, earlier, wait_s = (call.args[name] for name in ("question", "id", "wait_s"))
    if (question is None) is (earlier is None):
        raise BadRequest("give a question, or the id of one that was asked before")
    if earlier is not None:
        result = await call.operations.asks.wait_ask(call.principal, earlier, wait_s)
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
        "Asks the owner something, who answers with `answer` or over SSH; waits for the answer, if "
        "it is told to. Open questions stand in svc://asks; `id` waits on for one of them.",
        _ask,
        (
            Param("question", "string", "what is asked"),
            Param("options", "strings", "the answers to choose from; left out: any text"),
            Param("box", "string", "the box that it is about"),
            Param(
                "wait_s",
                "integer",
                "seconds to wait for the answer",
                default=0,
                minimum=0,
                maximum=MAX_WAIT_S,
            ),
            Param("id", "string", "of an earlier question, in the place of a new one"),
        ),
        {"id": STRING, "state": STRING, "answer": STRING},
        frozenset({"answer"}),
    ),
    Tool(
        "answer",
        "Answer a question",
        "Answers an open question; the first answer counts.",
        _answer,
        (
            Param("id", "string", "of the question, or its beginning", required=True),
            Param("answer", "string", "one of its options, if it has any", required=True),
        ),
        {"id": STRING, "state": STRING},
    ),
)
