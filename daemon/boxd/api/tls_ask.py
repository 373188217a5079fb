"""Protocol adapter only. `GET /v1/tls-ask`: whether the TLS proxy may get a certificate for a host.

Needs no key, so it answers the proxy alone, and tells nothing but yes or no.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from boxd.api.forwarded import of_proxy
from boxd.api.headers import query_values
from boxd.errors import BadName, Forbidden
from boxd.names.preview import label_below, parse_preview_label

PATH = "/v1/tls-ask"
REFUSED = "no certificate for this host: it is not the preview host of a box"
router = APIRouter()


@router.get(PATH)
async def tls_ask(request: Request) -> dict[str, bool]:
    """200 when `domain` is the preview host of a box; 403 otherwise, and for all but the proxy."""
    domain: str | None = request.app.state.preview_domain
    hosts = query_values(request.scope["query_string"], b"domain")
    if domain is None or len(hosts) != 1 or not of_proxy(request.scope):
        raise Forbidden(REFUSED)
    label = label_below(hosts[0].decode("latin-1"), domain)
    try:
        preview = parse_preview_label(label or "")
    except BadName:
        raise Forbidden(REFUSED) from None
    if not request.app.state.operations.is_anywhere(preview.reference):
        raise Forbidden(REFUSED)
    return {"ok": True}
