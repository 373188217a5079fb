"""Protocol adapter only. `GET /healthz`, the one path outside /v1; needs no key."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, bool]:
    """The daemon answers."""
    return {"ok": True}
