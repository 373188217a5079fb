"""Bytes between descriptors and a channel."""

from __future__ import annotations

import asyncio
import os

from box_guest.process.pumps import TAIL, InputPump, OutputPump
from tests.harness.wait import until


async def test_output_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []
    pump = OutputPump(reading, got.append)
    os.write(writing, b"one")
    os.write(writing, b"two")
    os.close(writing)
    async with asyncio.timeout(5):
        await pump.done
    assert b"".join(got) == b"onetwo"


async def test_paused_output_stays_in_the_pipe() -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []
    pump = OutputPump(reading, got.append)
    pump.pause()
    os.write(writing, b"kept")
    os.close(writing)
    for _ in range(20):
        await asyncio.sleep(0)
    assert got == []
    pump.last_call()
    assert not pump.done.done()
    pump.resume()
    async with asyncio.timeout(5):
        await pump.done
    assert got == [b"kept"]


async def test_last_call_takes_what_is_there_and_leaves() -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []
    pump = OutputPump(reading, got.append)
    os.write(writing, b"last words")
    pump.last_call()
    async with asyncio.timeout(5):
        await pump.done
    assert got == [b"last words"]
    os.close(writing)


async def test_last_call_ends_also_while_someone_writes_on() -> None:
    reading, writing = os.pipe()
    got = 0

    def refill(data: bytes) -> None:
        nonlocal got
        got += len(data)
        os.write(writing, data)

    pump = OutputPump(reading, refill)
    os.write(writing, bytes(4096))
    pump.last_call()
    async with asyncio.timeout(30):
        await pump.done
    assert TAIL < got <= TAIL + 65536
    os.close(writing)


async def test_closed_output_is_done() -> None:
    reading, writing = os.pipe()
    pump = OutputPump(reading, lambda data: None)
    pump.close()
    pump.close()
    assert pump.done.done()
    os.close(writing)


async def test_input_waits_for_its_reader() -> None:
    reading, writing = os.pipe()
    held: list[bool] = []
    pump = InputPump(writing, held.append, None)
    data = os.urandom(300_000)
    pump.feed(data[:200_000])
    pump.feed(data[200_000:])
    pump.end()
    assert held == [True]
    got = b""

    def read() -> bool:
        nonlocal got
        os.set_blocking(reading, False)
        try:
            block = os.read(reading, 65536)
        except BlockingIOError:
            return False
        got += block
        return not block

    await until(read)
    assert got == data
    assert held == [True, False]
    os.close(reading)


async def test_input_of_a_reader_that_is_gone_vanishes() -> None:
    reading, writing = os.pipe()
    held: list[bool] = []
    pump = InputPump(writing, held.append, None)
    pump.feed(bytes(1 << 20))
    assert held == [True]
    os.close(reading)
    await until(lambda: held == [True, False])
    pump.feed(b"more")
    pump.end()
    pump.close()


async def test_closing_bytes_stand_for_the_end() -> None:
    reading, writing = os.pipe()
    asked: list[bool] = []

    def closing(in_line: bool) -> bytes:
        asked.append(in_line)
        return b"\x04"

    pump = InputPump(writing, lambda held: None, closing)
    pump.feed(b"half")
    pump.end()
    assert os.read(reading, 10) == b"half\x04"
    assert asked == [True]
    pump.close()
    os.close(reading)
