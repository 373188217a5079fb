"""Error bodies of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


def error_of(response: httpx.Response) -> str:
    """Return the text of a refusal; the body must contain nothing else."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    return body["error"]
