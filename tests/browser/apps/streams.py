"""Answers that come slowly, and large ones."""

from __future__ import annotations

import queue
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIZE = 1 << 30
PIECE = bytes(range(256)) * 1024
PAGE = b"""<!doctype html>
<title>Streams</title>
<h1>Streams</h1>
<ol id=heard></ol>
<script>
const heard = document.getElementById("heard");
const note = text => heard.append(Object.assign(document.createElement("li"), {textContent: text}));
const source = new EventSource("events");
source.onopen = () => note("open");
source.onmessage = ({data}) => note(data);
const publish = text => fetch("events", {method: "POST", body: text});
async function load() {
  const answer = await fetch("large");
  const reader = answer.body.getReader();
  let bytes = 0, good = true;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return {bytes, good, length: Number(answer.headers.get("content-length"))};
    good &&= value[0] === bytes % 256 && value.at(-1) === (bytes + value.length - 1) % 256;
    bytes += value.length;
  }
}
</script>
"""

published: queue.Queue[str] = queue.Queue()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The page, its events, or one GiB."""
        if self.path == "/events":
            self._begin("text/event-stream", None)
            while True:
                self.wfile.write(f"data: {published.get()}\n\n".encode())
        elif self.path == "/large":
            self._begin("application/octet-stream", SIZE)
            for _ in range(SIZE // len(PIECE)):
                self.wfile.write(PIECE)
        else:
            self._begin("text/html", len(PAGE))
            self.wfile.write(PAGE)

    def do_POST(self) -> None:
        """Counts the body, or publishes it."""
        if self.path == "/sink":
            left = int(self.headers["content-length"])
            while left and (data := self.rfile.read(min(left, 1 << 16))):
                left -= len(data)
            self._begin("text/plain", 5 if left else 3)
            self.wfile.write(b"short" if left else b"all")
            return
        published.put(self.rfile.read(int(self.headers["content-length"])).decode())
        self._begin("text/plain", 0)

    def _begin(self, kind: str, length: int | None) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        if length is None:
            self.send_header("connection", "close")
        else:
            self.send_header("content-length", str(length))
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
