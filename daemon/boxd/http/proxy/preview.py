"""Protocol adapter only. Preview hosts: ports of boxes at `<box>-<port>.<preview domain>`.

On a preview host every path belongs to the app, including `/v1/...`. The service looks up the name
of the box among the boxes of the credential's owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BadName, NotFound
from boxd.http.proxy.rewriting import Place
from boxd.http.requests.exchange import record_of
from boxd.http.requests.forwarded import asked_host
from boxd.names.preview import label_below, parse_preview_label

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.http.proxy.proxy import ProxyEndpoint

ROUTE = "{box}-{port}.*"
"""The route of preview requests in the access log."""


class PreviewHosts:
    """Serves requests to preview hosts below `domain`; None: there are no preview hosts."""

    def __init__(self, proxy: ProxyEndpoint, domain: str | None) -> None:
        self._proxy = proxy
        self._domain = domain

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serve a request or WebSocket whose host is below the preview domain.

        Returns whether it was. Raises NotFound for a host that does not name a port of a box, and
        the errors of the proxy.
        """
        if self._domain is None:
            return False
        label = label_below(asked_host(scope), self._domain)
        if label is None:
            return False
        record_of(scope).route = ROUTE
        await self._proxy.serve(scope, receive, send, self._place(label, scope["raw_path"]))
        return True

    def _place(self, label: str, path: bytes) -> Place:
        try:
            preview = parse_preview_label(label)
        except BadName:
            raise NotFound(
                f"this is not a preview host; use BOX-PORT.{self._domain}, with the name or id"
                " of a box"
            ) from None
        box = str(preview.reference)
        return Place(box, preview.port, path, host=f"{label}.{self._domain}")
