"""How workers wait for requests: one is woken each time, none is lost, none reads in vain."""

import asyncio
import os
from collections.abc import Iterator

import pyfuse3.asyncio
import pytest
import uvloop

from box_guest.mount.loop import Queue, Readable


class Device:
    """A pipe in place of `/dev/fuse`: one byte is one request."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.taken: list[str] = []

    def ask(self, many: int = 1) -> None:
        os.write(self._end, b"r" * many)

    def take(self) -> None:
        """As the kernel does when a caller is killed."""
        os.read(self.descriptor, 1)

    def end(self) -> None:
        """As umount does: every read tells of it."""
        os.close(self._end)
        self._end = -1

    def close(self) -> None:
        os.close(self.descriptor)
        if self._end >= 0:
            os.close(self._end)

    async def worker(self, readable: Readable, name: str, requests: int = 1) -> None:
        for _ in range(requests):
            async with Queue():
                await readable.wait(self.descriptor)
            os.read(self.descriptor, 1)
            self.taken.append(name)


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of the mount process: what is woken runs before it looks again."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as made:
        yield made


async def _turns(many: int = 10) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


def test_each_request_wakes_one_worker_in_turn(runner: asyncio.Runner, device: Device) -> None:
    async def work() -> None:
        readable = Readable()
        workers = [asyncio.create_task(device.worker(readable, name)) for name in ("a", "b", "c")]
        await _turns()
        device.ask()
        await _turns()
        assert device.taken == ["a"]
        device.ask(2)
        async with asyncio.timeout(10):
            await asyncio.gather(*workers)
        readable.close(device.descriptor)

    runner.run(work())
    assert device.taken == ["a", "b", "c"]


def test_what_came_while_all_were_busy_is_found_by_the_next(
    runner: asyncio.Runner, device: Device
) -> None:
    async def work() -> None:
        readable = Readable()
        device.ask(3)
        await device.worker(readable, "first")
        await _turns(50)  # nobody waits, and the descriptor stays readable
        async with asyncio.timeout(10):
            await device.worker(readable, "next", requests=2)
        readable.close(device.descriptor)

    runner.run(work())
    assert device.taken == ["first", "next", "next"]


def test_a_request_that_is_taken_back_is_waited_for_no_longer(
    runner: asyncio.Runner, device: Device
) -> None:
    async def work() -> None:
        readable = Readable()
        device.ask(2)
        await device.worker(readable, "first")
        await _turns()  # it is noted that there is one more
        device.take()
        worker = asyncio.create_task(device.worker(readable, "next"))
        await _turns()
        assert not worker.done()
        device.ask()
        async with asyncio.timeout(10):
            await worker
        readable.close(device.descriptor)

    runner.run(work())
    assert device.taken == ["first", "next"]


def test_a_worker_that_went_away_is_passed_over(runner: asyncio.Runner, device: Device) -> None:
    async def work() -> None:
        readable = Readable()
        gone, stays = (
            asyncio.create_task(device.worker(readable, name)) for name in ("gone", "stays")
        )
        await _turns()
        gone.cancel()
        await asyncio.wait({gone})
        device.ask()
        async with asyncio.timeout(10):
            await stays
        readable.close(device.descriptor)

    runner.run(work())
    assert device.taken == ["stays"]


def test_the_end_reaches_all_who_wait(runner: asyncio.Runner, device: Device) -> None:
    async def work() -> list[BaseException | None]:
        readable = Readable()
        workers = [asyncio.create_task(device.worker(readable, name)) for name in ("a", "b")]
        await _turns()
        readable.close(device.descriptor)
        await asyncio.wait(workers, timeout=10)
        return [worker.exception() for worker in workers]

    found = runner.run(work())
    assert [type(one) for one in found] == [pyfuse3.asyncio.ClosedResourceError] * 2


def test_the_end_of_the_mount_reaches_every_worker(runner: asyncio.Runner, device: Device) -> None:
    async def work() -> None:
        readable = Readable()
        workers = [asyncio.create_task(device.worker(readable, name)) for name in ("a", "b", "c")]
        await _turns()
        device.end()
        async with asyncio.timeout(10):
            await asyncio.gather(*workers)
            await device.worker(readable, "later")
        readable.close(device.descriptor)

    runner.run(work())
    assert sorted(device.taken) == ["a", "b", "c", "later"]


def test_nothing_spins_while_all_workers_are_busy(runner: asyncio.Runner, device: Device) -> None:
    async def work() -> int:
        readable = Readable()
        woken = 0
        wake = readable._wake

        def counted() -> None:
            nonlocal woken
            woken += 1
            wake()

        readable._wake = counted  # type: ignore[method-assign] # counts
        device.ask(2)
        await device.worker(readable, "first")
        await asyncio.sleep(0.05)
        readable.close(device.descriptor)
        return woken

    assert runner.run(work()) <= 3
