"""Protocol adapter only. `/v1/boxes`: list, remove, suspend, resume."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from boxd.api.dependencies import Caller, Reference

router = APIRouter(prefix="/v1/boxes")


@router.get("")
async def list_boxes(caller: Caller) -> list[dict[str, Any]]:
    """The caller's boxes; with `?ws=` only those of that workspace."""
    views = await caller.operations.list_boxes(
        caller.principal, caller.ws, everywhere=caller.ws is None
    )
    return [view.to_json() for view in views]


@router.delete("/{ref}", status_code=204)
async def remove(caller: Caller, ref: Reference) -> Response:
    """Destroys the box that the reference names."""
    await caller.operations.remove(caller.principal, ref, caller.ws)
    return Response(status_code=204)


@router.post("/{ref}/suspend")
async def suspend(caller: Caller, ref: Reference) -> dict[str, str]:
    """The box's memory goes to disk; answers with its state, also when it was asleep."""
    view = await caller.operations.suspend(caller.principal, ref, caller.ws)
    return {"state": view.state}


@router.post("/{ref}/resume")
async def resume(caller: Caller, ref: Reference) -> dict[str, str]:
    """The box runs on from its memory; answers with its state, also when it ran."""
    view = await caller.operations.resume(caller.principal, ref, caller.ws)
    return {"state": view.state}
