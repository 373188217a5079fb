"""How pyfuse3 waits for the next request: its asyncio mode with a standing reader.

pyfuse3.asyncio adds and removes a reader on the event loop for every single request, and its
workers hand a lock round. With one reader that stays and one queue of workers a request *measured*
57 -> 40 us of CPU, and a created file, five requests, 27 system calls less.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque

import pyfuse3.asyncio

_ENDED = select.POLLERR | select.POLLHUP
"""Of a descriptor whose mount is gone."""


class Readable:
    """Tells workers when `/dev/fuse` has a request: one of them for each time that it is readable.

    Critical section: between the wake-up of a worker and its read of the request nothing else
    reads, because a worker that was woken runs before the event loop looks again. Where nobody
    waits (all workers are busy) that is noted for the next one; the second time the descriptor is
    not watched any more, as it would stay readable.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.poll()
        self._watched: int | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ready = False

    async def wait(self, descriptor: int) -> None:
        """Returns when there is something to read; ClosedResourceError at the end."""
        if self._watched is None:
            self._poll.register(descriptor, select.POLLIN)
            self._loop.add_reader(descriptor, self._wake)
            self._watched = descriptor
        ready, self._ready = self._ready, False
        # The kernel takes a request back whose caller is killed, and pyfuse3 loses the worker
        # that finds nothing to read.
        while not (ready and (found := self._poll.poll(0))):
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
            ready = True
        if found[0][1] & _ENDED:
            # The event loop tells of it once, and every worker finds it out by reading.
            self._ready = True
            while self._waiters:
                self._wake()

    def close(self, _descriptor: int) -> None:
        """Ends the waiting: no request will be read any more."""
        self._stop_watching()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(pyfuse3.asyncio.ClosedResourceError())

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        if self._ready:
            self._stop_watching()
        self._ready = True

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None


class Queue:
    """In place of the lock that pyfuse3 holds while it waits: `Readable` lets workers queue."""

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, *_error: object) -> None:
        return


def enable() -> None:
    """Switches pyfuse3 to the running event loop. Before `pyfuse3.init`."""
    readable = Readable()
    pyfuse3.asyncio.enable()
    # pyfuse3 looks these up in its module, at each request and, the lock, at the first.
    vars(pyfuse3.asyncio).update(
        wait_readable=readable.wait, notify_closing=readable.close, Lock=Queue
    )
