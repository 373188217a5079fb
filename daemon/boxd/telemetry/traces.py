"""OpenTelemetry traces: an observer that makes a span of each piece of work, and sends the spans.

The spans wait in a queue of bounded length. A thread sends them; if the receiver does not answer,
they are dropped. Attributes are kinds, names and outcomes of small fixed sets. There are no names
of files or boxes, no ids of owners, and no texts of errors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from boxd.observation import FAILED, Event, Work, outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

    from boxd.observation import Observation

QUEUE = 2048
"""Maximum number of spans that wait to be sent; more are dropped."""
BATCH = 512
"""Maximum number of spans in one request."""
DELAY_MS = 1000
"""Milliseconds between two requests, unless a batch is full before."""
SEND_S = 5.0
"""Seconds within which the receiver must accept a batch, with all repetitions."""
CLOSE_S = 2.0
"""Seconds for the last spans when the service stops."""
INNER = frozenset([Work.QUERY, Work.DRIVE_CALL])
"""Work that has a span only as a part of other work. The service also does it by itself, often."""
_DOORS = frozenset([Work.HTTP, Work.SSH_CHANNEL])
_SERVER_ERROR = "5"

_log = logging.getLogger(__name__)
# The library logs each failed request and each dropped span. `_Exporter` logs changes.
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class Traces:
    """Implements `Observer`. Call `close` once."""

    def __init__(self, endpoint: str, version: str) -> None:
        """`endpoint` is the URL of an OTLP/HTTP receiver, with its path."""
        self._exporter = _Exporter(endpoint)
        resource = Resource({"service.name": "boxd", "service.version": version})
        self._provider = TracerProvider(
            sampler=sampling.ParentBased(sampling.ALWAYS_ON),
            resource=resource,
            shutdown_on_exit=False,
        )
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE,
            schedule_delay_millis=DELAY_MS,
            max_export_batch_size=BATCH,
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("boxd")
        self._trace_ids = _TraceIds()
        self._handlers = list(logging.getLogger().handlers)
        for handler in self._handlers:
            handler.addFilter(self._trace_ids)

    def work(
        self, work: Work, name: str = "", parent: str = ""
    ) -> AbstractContextManager[Observation]:
        """Implements `Observer`."""
        return _Spanning(self._tracer, work, name, parent)

    def event(self, event: Event) -> None:
        """Implements `Observer`: an event has no span."""

    def flush(self) -> None:
        """Send the spans that wait. Blocks until the receiver has answered."""
        self._processor.force_flush()

    async def close(self) -> None:
        """Send the spans that wait, within CLOSE_S seconds, and drop the rest."""
        for handler in self._handlers:
            handler.removeFilter(self._trace_ids)
        loop, end = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end.set)

        threading.Thread(target=shut_down, name="last traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await end.wait()
        except TimeoutError:
            self._exporter.shutdown()


class _TraceIds(logging.Filter):
    """Adds the id of the current trace to log records, so that a trace leads to its records."""

    def filter(self, record: logging.LogRecord) -> bool:
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            record.trace_id = trace.format_trace_id(current.trace_id)
        return True


class _Spanning:
    """Implements `Observation`: the span of one piece of work."""

    __slots__ = ("_name", "_outcome", "_parent", "_span", "_token", "_tracer", "_work")

    def __init__(self, tracer: Tracer, work: Work, name: str, parent: str) -> None:
        self._tracer = tracer
        self._work = work
        self._name = name
        self._parent = parent
        self._outcome = ""
        self._span: trace.Span | None = None
        self._token: Token[Context] | None = None

    def end_as(self, name: str, outcome: str) -> None:
        self._name, self._outcome = name, outcome

    def __enter__(self) -> _Spanning:
        above = self._above()
        if above is None:
            return self
        kind = trace.SpanKind.SERVER if self._work in _DOORS else trace.SpanKind.INTERNAL
        self._span = self._tracer.start_span(self._work.value, above, kind)
        self._token = context.attach(trace.set_span_in_context(self._span, above))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._span is None or self._token is None:
            return
        context.detach(self._token)
        outcome = self._outcome or outcome_of(error)
        if self._name:
            self._span.update_name(self._title())
        self._span.set_attribute("boxd.work", self._work.value)
        self._span.set_attribute("boxd.outcome", outcome)
        if self._work is Work.HTTP:
            method, _, route = self._name.partition(" ")
            self._span.set_attribute("http.request.method", method)
            self._span.set_attribute("http.route", route)
            if outcome.isdigit():
                self._span.set_attribute("http.response.status_code", int(outcome))
        if outcome == FAILED or outcome.startswith(_SERVER_ERROR):
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def _title(self) -> str:
        return self._name if self._work is Work.HTTP else f"{self._work.value} {self._name}"

    def _above(self) -> Context | None:
        """Return the context of the span above. None: the work has no span.

        A task that outlives the work that started it does not continue the trace of that work.
        """
        if self._parent:
            return TraceContextTextMapPropagator().extract(
                {"traceparent": self._parent}, context.Context()
            )
        if trace.get_current_span().is_recording():
            return context.get_current()
        return None if self._work in INNER else context.Context()


class _Exporter(SpanExporter):
    """Sends batches, in a thread of the library. Logs when the receiver fails, and when it works.

    Only that thread calls `export`.
    """

    def __init__(self, endpoint: str) -> None:
        self._inner: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
        self._failing = False
        self._dropped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Implements `SpanExporter`."""
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._failing:
                _log.info("traces are sent again; %d spans were dropped", self._dropped)
            self._failing, self._dropped = False, 0
            return result
        self._dropped += len(spans)
        if not self._failing:
            self._failing = True
            _log.warning(
                "traces are dropped: the receiver of --trace-endpoint does not accept them"
            )
        return result

    def shutdown(self) -> None:
        """Implements `SpanExporter`: interrupts a request that is repeated."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Implements `SpanExporter`: nothing waits here."""
        return True
