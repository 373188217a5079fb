"""The output of commands, as streams of events."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from boxd_client.errors import AnswerTooLarge, ConnectionLost
from boxd_client.events import BatchEvents, CommandEvents, WatchEvents
from boxd_client.models import Exit, Output, Result

if TYPE_CHECKING:
    from types import TracebackType

    from boxd_client._sync.basis import Stream
    from boxd_client._sync.transport import Transport
    from boxd_client.models import BatchError, BatchExit, BatchOutput, Change, Dropped
    from boxd_client.protocol import Request

T = TypeVar("T")
MAX_OUTPUT = 64 * 1024 * 1024
"""Default limit on the output that is collected in memory, in bytes."""


class CommandStream:
    """The events of one command: `Output`, `Dropped` and, last, `Exit`.

    The request begins with the first event. The stream raises ConnectionLost if it breaks before
    `Exit`: the exit code is then unknown. If you stop before `Exit`, close the stream, or use it as
    a context manager; a command of `stream` then ends.
    """

    def __init__(self, events: Stream[Output | Dropped | Exit]) -> None:
        self._events = events
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output | Dropped | Exit:
        event = next(self._events)
        if isinstance(event, Exit):
            self.exit_code = event.code
        return event

    def close(self) -> None:
        """Stop reading and close the connection."""
        self._events.close()

    def collect(self, limit: int = MAX_OUTPUT) -> Result:
        """Return the exit code and the whole output.

        Raises AnswerTooLarge if the output exceeds `limit` bytes.
        """
        buffers = {"stdout": bytearray(), "stderr": bytearray()}
        size = 0
        with self:
            for event in self:
                if isinstance(event, Output):
                    size += len(event.data)
                    if size > limit:
                        raise AnswerTooLarge(
                            f"the output of the command exceeds {limit} bytes; read it as a stream"
                        )
                    buffers[event.stream] += event.data
        if self.exit_code is None:
            raise ConnectionLost("the stream was closed before the command ended")
        return Result(self.exit_code, bytes(buffers["stdout"]), bytes(buffers["stderr"]))


class _EventStream(Generic[T]):
    def __init__(self, events: Stream[T]) -> None:
        self._events = events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._events)

    def close(self) -> None:
        """Stop reading and close the connection."""
        self._events.close()


class BatchStream(_EventStream["BatchOutput | BatchExit | BatchError"]):
    """The events of a command in several boxes: `BatchOutput`, and one end for each box."""


class WatchStream(_EventStream["Change"]):
    """The changes below a directory of a box, until you stop, or until the directory is removed."""


def command_events(
    transport: Transport, request: Request, budget: float | None
) -> Stream[Output | Dropped | Exit]:
    """Yield the events of one command. Raises ConnectionLost if there is no exit code."""
    decoder = CommandEvents()
    with closing(transport.events(request, "exit", budget)) as events:
        for event in events:
            value = decoder.take(event)
            if value is not None:
                yield value
    if decoder.exit is None:
        raise ConnectionLost("the service ended the command, so its exit code is unknown")


def batch_events(
    transport: Transport, request: Request, budget: float | None
) -> Stream[BatchOutput | BatchExit | BatchError]:
    """Yield the events of a command in several boxes."""
    decoder = BatchEvents()
    with closing(transport.events(request, "done", budget)) as events:
        for event in events:
            value = decoder.take(event)
            if value is not None:
                yield value
    if not decoder.done:
        raise ConnectionLost("the connection broke before all boxes had ended the command")


def watch_events(transport: Transport, request: Request) -> Stream[Change]:
    """Yield the changes below a directory. Raises ConnectionLost if the watch does not end."""
    decoder = WatchEvents()
    with closing(transport.events(request, "end")) as events:
        for event in events:
            value = decoder.take(event)
            if value is not None:
                yield value
    if not decoder.ended:
        raise ConnectionLost("the connection of the watch broke; changes may be missing")
