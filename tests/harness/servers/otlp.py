"""A real OTLP/HTTP receiver on loopback: it decodes the protobuf messages and keeps all spans."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ReceivedSpan:
    """A span; ids are hexadecimal, and `parent_id` is empty for the first span of a trace."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    is_error: bool


@dataclass
class Receiver:
    """What the receiver got. With `status` other than 200 it refuses every request."""

    url: str = ""
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    spans: list[ReceivedSpan] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def receive(self, body: bytes) -> None:
        """Decode one request."""
        self.bodies.append(body)
        message = ExportTraceServiceRequest.FromString(body)
        for group in message.resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        ReceivedSpan(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            {
                                one.key: one.value.string_value or str(one.value.int_value)
                                for one in span.attributes
                            },
                            span.status.code == 2,
                        )
                    )


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """Yield a receiver that serves in a thread."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if receiver.status == 200:
                receiver.receive(body)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, name="otlp receiver")
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
