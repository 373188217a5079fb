"""Protocol adapter only. What JSON routes need of a request: the caller and a box reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from boxd.api.auth import authenticate
from boxd.api.headers import path_text, query_workspace

if TYPE_CHECKING:
    from boxd.operations import Operations
    from boxd.principal import Principal


@dataclass(frozen=True, slots=True)
class Call:
    """An authenticated request. `ws` is the workspace of `?ws=`, unchecked."""

    operations: Operations
    principal: Principal
    ws: str | None


async def _call(request: Request) -> Call:
    operations = cast("Operations", request.app.state.operations)
    principal = await authenticate(request.scope, operations)
    return Call(operations, principal, query_workspace(request.scope["query_string"]))


def _reference(request: Request) -> str:
    return path_text(request.path_params["ref"])


Caller = Annotated[Call, Depends(_call)]
Reference = Annotated[str, Depends(_reference)]
