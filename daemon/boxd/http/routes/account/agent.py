"""Protocol adapter only. `/v1/agent`: the program that runs the tasks of an owner."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta
from starlette.responses import JSONResponse, Response

from boxd.http.description.bodies import body_of
from boxd.http.description.operation import (
    Json,
    Operation,
    answer,
    errors,
    ref,
)
from boxd.http.requests.json_body import JsonForm
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.secret import Secret

_AGENT: Json = {
    "cmd": "my-agent --print",
    "env": "AGENT_TOKEN",
    "format": "text",
    "updated": "2026-01-02T03:04:05+00:00",
}

_EXAMPLE: Json = {"cmd": "my-agent --print", "env": "AGENT_TOKEN", "token": "example"}


class NewAgent(JsonForm, kw_only=True):
    """The body of `setAgent`."""

    cmd: Annotated[str, Meta(description="The command; it reads the task on standard input.")]
    env: Annotated[str, Meta(description="The variable that has the token.")]
    token: Annotated[str, Meta(description="The token. No route returns it.")]
    format: Annotated[
        Literal["text", "jsonl"], Meta(description="The format of the standard output.")
    ] = "text"


@json_route(
    "GET",
    "/v1/agent",
    Operation(
        "showAgent",
        "Account",
        "Show the agent",
        "Returns the program that runs your tasks, without its token.",
        {"200": answer("The agent.", ref("Agent"), _AGENT), **errors(404)},
    ),
)
async def show_agent(request: JsonRequest) -> Response:
    """Return the agent of the caller's owner."""
    caller = await request.caller()
    agent = await caller.operations.agents.show_agent(caller.principal)
    return JSONResponse(agent.to_json())


@json_route(
    "PUT",
    "/v1/agent",
    Operation(
        "setAgent",
        "Account",
        "Set the agent",
        "Sets the program that runs your tasks, and its token.",
        {"200": answer("The agent.", ref("Agent"), _AGENT), **errors(413, 415)},
        (),
        body_of(NewAgent, **_EXAMPLE),
    ),
)
async def set_agent(request: JsonRequest) -> Response:
    """Record the agent, and return it."""
    caller, form = await request.caller(), await request.form(NewAgent)
    agent = await caller.operations.agents.set_agent(
        caller.principal,
        command=form.cmd,
        env=form.env,
        output=form.format,
        token=Secret(form.token),
    )
    return JSONResponse(agent.to_json())


@json_route(
    "DELETE",
    "/v1/agent",
    Operation(
        "removeAgent",
        "Account",
        "Remove the agent",
        "Removes the program and its token.",
        {"204": answer("The agent is removed."), **errors(404)},
    ),
)
async def remove_agent(request: JsonRequest) -> Response:
    """Remove the agent of the caller's owner."""
    caller = await request.caller()
    await caller.operations.agents.remove_agent(caller.principal)
    return Response(status_code=204)


ROUTES = (show_agent, set_agent, remove_agent)
