"""Protocol adapter only. `GET /v1/tls-ask`: whether the TLS proxy may get a certificate for a host.

The route needs no key. So it answers only the TLS proxy, and reveals only yes or no.
"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from boxd.errors import BadName, Forbidden
from boxd.http.description.operation import NO_KEY, Operation, answer, errors, query, ref
from boxd.http.requests.forwarded import of_proxy
from boxd.http.routes.json_route import JsonRequest, json_route
from boxd.names.preview import label_below, parse_preview_label

REFUSED = "no certificate for this host: it is not the preview host of a box"


@json_route(
    "GET",
    "/v1/tls-ask",
    Operation(
        "tlsAsk",
        "Service",
        "Check whether a host may have a certificate",
        "Answers only the TLS proxy in front of the service.",
        {
            "200": answer("The host is the preview host of a box.", ref("Ok"), {"ok": True}),
            **errors(403, key=False),
        },
        (query("domain", "The host that needs a certificate.", type="string"),),
        security=NO_KEY,
    ),
)
async def tls_ask(request: JsonRequest) -> Response:
    """Return 200 if `domain` is the preview host of a box; else 403, as for any other client."""
    domain = request.services.preview_domain
    hosts = request.query("domain")
    if domain is None or len(hosts) != 1 or not of_proxy(request.scope):
        raise Forbidden(REFUSED)
    label = label_below(hosts[0].decode("latin-1"), domain)
    try:
        preview = parse_preview_label(label or "")
    except BadName:
        raise Forbidden(REFUSED) from None
    if not request.services.operations.directory.is_anywhere(preview.reference):
        raise Forbidden(REFUSED)
    return JSONResponse({"ok": True})


ROUTES = (tls_ask,)
