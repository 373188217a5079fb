"""An event loop without a clock: a seed selects the next callback, and idle time passes at once.

It serves simulations on memory stores. Ready callbacks run in any order. A real loop runs them in
order of arrival, so a property that holds here also holds there. If no callback is ready, the clock
jumps to the next timer. Two runs with the same seed are equal. A program that waits for an
impossible event gets `Deadlock` at once.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio import events
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(AssertionError):
    """Tasks wait, and no pending callback can wake them."""


class Endless(AssertionError):
    """The program runs without end."""


class Timer(asyncio.Handle):
    """A callback for a moment of the virtual clock."""

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._when = when

    def when(self) -> float:
        """Return the time on the loop's clock, in seconds."""
        return self._when


class VirtualLoop:
    """The loop of this module. It has no files, sockets, signals, processes or threads.

    It implements only what tasks, futures and timeouts need of a loop.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.complaints: list[str] = []
        """Reports of asyncio about exceptions that no task has retrieved."""
        self._self = cast("asyncio.AbstractEventLoop", self)
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._running = False

    def run(self, main: Coroutine[Any, Any, T], *, steps: int = 1_000_000) -> T:
        """Return the result of `main`. Raises Deadlock, or Endless after `steps` callbacks."""
        events._set_running_loop(self._self)  # The usual way to make a loop the running one.
        self._running = True
        try:
            task = self.create_task(main)
            for _ in range(steps):
                if task.done():
                    return task.result()
                self._step()
            raise Endless(f"not done after {steps} steps")
        finally:
            self._running = False
            events._set_running_loop(None)

    def _step(self) -> None:
        if not self._ready:
            if not self._timers:
                raise Deadlock("nothing can happen any more")
            self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        place = self.random.randrange(len(self._ready))
        self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
        handle = self._ready.pop()
        if not handle.cancelled():
            handle._run()

    # -- the interface for asyncio --

    def time(self) -> float:
        """Return virtual seconds since the start."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Make a callback ready now; the seed decides when it runs."""
        handle = asyncio.Handle(callback, args, self._self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Make a callback ready after `delay` virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Make a callback ready at a moment of the virtual clock."""
        timer = Timer(when, callback, args, self._self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return cast("asyncio.TimerHandle", timer)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self._self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        return asyncio.Task(coro, loop=self._self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record the report."""
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Record the report."""
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return whether `run` is active."""
        return self._running

    def is_closed(self) -> bool:
        """Return False: there is nothing to close."""
        return False
