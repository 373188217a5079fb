"""A page that talks to its server by WebSocket, which says everything back."""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

PAGE = b"""<!doctype html>
<title>Echo</title>
<h1>Echo</h1>
<pre id=said></pre>
<script>
const place = new URL("socket", location.href);
place.protocol = place.protocol.replace("http", "ws");
const socket = new WebSocket(place, ["chat", "other"]);
const say = text => document.getElementById("said").append(text + "\\n");
socket.binaryType = "arraybuffer";
socket.onopen = () => {
  say(`open ${socket.protocol}`);
  socket.send("h\\u00e9llo");
  socket.send(new Uint8Array(300000).fill(7));
};
socket.onmessage = ({data}) => {
  if (typeof data === "string") say(`text ${data}`);
  else {
    const bytes = new Uint8Array(data);
    say(`binary ${bytes.length} ${bytes.every(byte => byte === 7)}`);
    socket.send("close 4001");
  }
};
socket.onclose = ({code, reason}) => say(`closed ${code} ${reason}`);
</script>
"""


async def echo(socket: ServerConnection) -> None:
    """Says back; `close N` closes."""
    async for message in socket:
        if isinstance(message, str) and message.startswith("close "):
            await socket.close(int(message.split()[1]), "as you wish")
        else:
            await socket.send(message)


def page(_socket: ServerConnection, request: Request) -> Response | None:
    """The page, for who wants no WebSocket."""
    if "upgrade" in request.headers:
        return None
    headers = Headers({"content-type": "text/html", "content-length": str(len(PAGE))})
    return Response(HTTPStatus.OK.value, "OK", headers, PAGE)


async def main() -> None:
    """Serves until it is ended."""
    async with serve(
        *(echo, "127.0.0.1", int(sys.argv[1])), process_request=page, subprotocols=["chat"]
    ) as server:
        await server.serve_forever()


asyncio.run(main())
