"""Protocol adapter only. `GET /v1/images` and `GET /v1/flavors`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from boxd.api.dependencies import Caller

router = APIRouter(prefix="/v1")


@router.get("/images")
async def images(caller: Caller) -> list[dict[str, Any]]:
    """What a box can start from: name, description, whether it is built here."""
    return [asdict(image) for image in caller.operations.images()]


@router.get("/flavors")
async def flavors(caller: Caller) -> list[dict[str, Any]]:
    """Hardware caps: name, description, cpus, mem_mb."""
    return [
        {
            "name": flavor.name,
            "description": flavor.description,
            "cpus": flavor.cpus,
            "mem_mb": flavor.mem_mb,
        }
        for flavor in caller.operations.flavors()
    ]
