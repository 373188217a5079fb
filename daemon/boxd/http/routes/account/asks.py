"""Protocol adapter only. `/v1/asks`: questions of programs to their owner, and the answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field
from starlette.responses import JSONResponse, Response

from box_guest.protocol import MAX_OPTIONS
from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    WS,
    Json,
    Operation,
    answer,
    array,
    errors,
    path,
    query,
    ref,
)
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.operations.asks import MAX_WAIT_S

_ID = path("id", "The id of the question, or the beginning of it.", "0f3a", pattern="^[0-9a-f]+$")
_ASK: Json = {
    "id": "0f3a41c2d5e6978811223344556677ff",
    "box": "web",
    "workspace": None,
    "question": "Deploy now?",
    "options": ["yes", "no"],
    "state": "open",
    "created": "2026-01-02T03:04:05+00:00",
}
_RESULT: Json = {"id": _ASK["id"], "state": "answered", "answer": "yes"}
_WaitS = Annotated[int, Meta(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the answer.")]


class NewAsk(JsonForm, kw_only=True):
    """The body of `createAsk`."""

    question: Annotated[str, Meta(description="The question.")]
    options: Annotated[
        list[Annotated[str, Meta(description="An answer.")]],
        Meta(description="The allowed answers. Empty: any text.", max_length=MAX_OPTIONS),
    ] = field(default_factory=list)
    box: Annotated[str | None, Meta(description="The box that the question is about.")] = None
    wait_s: _WaitS = 0


class Answer(JsonForm, kw_only=True):
    """The body of `answerAsk`."""

    answer: Annotated[str, Meta(description="The answer; one of the options if there are any.")]


@json_route(
    "GET",
    "/v1/asks",
    Operation(
        "listAsks",
        "Account",
        "List open questions",
        "Returns the open questions of programs, the oldest first.",
        {"200": answer("The questions.", array("Ask"), [_ASK]), **errors()},
    ),
)
async def list_asks(request: JsonRequest) -> Response:
    """Return the open questions that the caller can see."""
    caller = await request.caller()
    views = await caller.operations.asks.list_asks(caller.principal)
    return JSONResponse([view.to_json() for view in views])


@json_route(
    "POST",
    "/v1/asks",
    Operation(
        "createAsk",
        "Account",
        "Ask the owner a question",
        "Records a question, and waits up to `wait_s` seconds for the answer of the owner.",
        {
            "201": answer("The question, or its answer.", ref("AskResult"), _RESULT),
            **errors(404, 409, 413, 415, 429),
        },
        (WS,),
        body_of(NewAsk, question="Deploy now?", options=["yes", "no"]),
    ),
)
async def create_ask(request: JsonRequest) -> Response:
    """Record a question, and return its state."""
    caller, form = await request.caller(), await request.form(NewAsk)
    result = await exchange_of(request.scope).connected(
        caller.operations.asks.ask(
            caller.principal,
            form.question,
            form.options,
            box=form.box,
            ws=caller.ws,
            wait_s=form.wait_s,
        )
    )
    return JSONResponse(result.to_json(), 201)


@json_route(
    "GET",
    "/v1/asks/{id}",
    Operation(
        "showAsk",
        "Account",
        "Wait for an answer",
        "Returns the state of a question; with `wait_s`, waits while the question is open.",
        {
            "200": answer("The state, and the answer.", ref("AskResult"), _RESULT),
            **errors(404, 409),
        },
        (
            _ID,
            query(
                "wait_s",
                "Seconds to wait for the answer.",
                type="integer",
                minimum=0,
                maximum=MAX_WAIT_S,
            ),
        ),
    ),
)
async def show_ask(request: JsonRequest) -> Response:
    """Return the state of a question, after a wait."""
    caller = await request.caller()
    wait_s = request.number("wait_s", default=0, least=0, most=MAX_WAIT_S)
    result = await exchange_of(request.scope).connected(
        caller.operations.asks.wait_ask(caller.principal, request.parameter("id"), wait_s)
    )
    return JSONResponse(result.to_json())


@json_route(
    "POST",
    "/v1/asks/{id}/answer",
    Operation(
        "answerAsk",
        "Account",
        "Answer a question",
        "Answers an open question. Only the first answer counts.",
        {
            "200": answer("The question is answered.", ref("AskResult"), _RESULT),
            **errors(404, 409, 413, 415),
        },
        (_ID,),
        body_of(Answer, answer="yes"),
    ),
)
async def answer_ask(request: JsonRequest) -> Response:
    """Answer a question."""
    caller, form = await request.caller(), await request.form(Answer)
    ask = await caller.operations.asks.answer_ask(
        caller.principal, request.parameter("id"), form.answer
    )
    return JSONResponse({"id": ask.id, "state": "answered", "answer": ask.answer})


ROUTES = (list_asks, create_ask, show_ask, answer_ask)
