"""Protocol adapter only. Ports of boxes at hosts of their own: `<box>-<port>.<preview domain>`.

On such a host every path is the app's, also `/v1/...`. Which box a name means is decided by the
credential, whose owner it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.exchange import record_of
from boxd.api.forwarded import asked_host
from boxd.api.rewriting import Place
from boxd.errors import BadName, NotFound
from boxd.names.preview import label_below, parse_preview_label

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.api.proxy import ProxyEndpoint

ROUTE = "{box}-{port}.*"
"""How such requests stand in the access log."""


class PreviewHosts:
    """See the module. `domain` None: there are none."""

    def __init__(self, proxy: ProxyEndpoint, domain: str | None) -> None:
        self._proxy = proxy
        self._domain = domain

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serves a request, or a WebSocket, if it is for a host below the preview domain.

        Raises NotFound for one that is not that of a port, and what the proxy raises.
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
                f"no preview host; one is BOX-PORT.{self._domain}, with the name or id of a box"
            ) from None
        box = str(preview.reference)
        return Place(box, preview.port, path, host=f"{label}.{self._domain}")
