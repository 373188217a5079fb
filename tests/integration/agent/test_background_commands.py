"""Background commands of a real agent, through its tunnel."""

from __future__ import annotations

import array
import asyncio
import fcntl
import hashlib
import itertools
import os
import random
import termios
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from box_guest.shared import command_messages
from boxd.errors import BadRequest, Conflict, NotFound, QuotaExceeded
from boxd.model.presence import Presence
from boxd.tunnel.commands import UNLIMITED, BoxCommands
from tests.harness.agents.agent import BOX_ID, LocalBox, local_box
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from box_guest.shared.command_messages import CommandState

__all__ = ("local_box",)

OTHER = "c1" * 16
UNKNOWN = "0123456789abcdef"


async def commands(box: LocalBox) -> BoxCommands:
    """The commands of the box, through its current tunnel."""
    return BoxCommands(await box.tunnel())


async def start(
    box: LocalBox,
    cmd: str,
    *,
    stdin: bool = False,
    keep_awake: bool = True,
    timeout_s: int | None = None,
) -> str:
    """Start a command and return its id."""
    state = await (await commands(box)).start(
        cmd, {"GIVEN": "yes"}, timeout_s=timeout_s, keep_awake=keep_awake, stdin=stdin
    )
    return state.id


async def read(
    box: LocalBox, number: str, offset: int = 0, *, follow: bool = True, limit: int = UNLIMITED
) -> tuple[list[tuple[str | None, bytes]], int, CommandState]:
    """Joined pieces of output, the next offset, and the last state."""
    pieces: list[tuple[str | None, bytes]] = []
    async with (await commands(box)).output(number, offset, follow=follow, limit=limit) as reader:
        async with aclosing(reader.pieces()) as output:
            async for piece in output:
                offset = piece.next_offset
                pieces.append((piece.stream, piece.data or b"%d" % piece.dropped))
        assert reader.end is not None
        return pieces, offset, reader.end


def joined(pieces: list[tuple[str | None, bytes]], stream: str = "stdout") -> bytes:
    """The bytes of one stream."""
    return b"".join(data for name, data in pieces if name == stream)


async def ended(box: LocalBox, number: str) -> CommandState:
    """The state of a command, once it has ended."""
    return (await read(box, number))[2]


async def pieces_of(data: bytes, size: int = 60_000) -> AsyncIterator[bytes]:
    """The data in pieces."""
    for start_ in range(0, len(data), size):
        yield data[start_ : start_ + size]


async def test_a_command_outlives_its_tunnel(local_box: LocalBox) -> None:
    number = await start(local_box, "echo one; read x; echo two $x; echo e >&2; exit 3", stdin=True)
    tunnel = await local_box.tunnel()
    await tunnel.close()
    await local_box.tunnel()
    state = await (await commands(local_box)).show(number)
    assert (state.running, state.exit_code, state.stdin_open) == (True, None, True)
    state = await (await commands(local_box)).write(number, pieces_of(b"more\n"), close=True)
    assert not state.stdin_open
    pieces, offset, state = await read(local_box, number)
    assert joined(pieces) == b"one\ntwo more\n"
    assert joined(pieces, "stderr") == b"e\n"
    assert offset == state.output_bytes == len(b"one\ntwo more\ne\n")
    assert (state.running, state.exit_code, state.signal) == (False, 3, None)
    assert state.ended is not None
    assert state.ended >= state.started
    [listed] = await (await commands(local_box)).all()
    assert listed == state


async def test_the_environment_is_that_of_a_session(local_box: LocalBox) -> None:
    number = await start(local_box, 'echo "$FROM_IMAGE $GIVEN $HOME"; cat')
    pieces, _, state = await read(local_box, number)
    assert joined(pieces).startswith(b"yes yes /")
    assert (state.exit_code, state.stdin_open) == (0, False)


async def test_any_offset_continues_the_output_exactly(local_box: LocalBox) -> None:
    script = "for i in $(seq 200); do echo line $i; echo error $i >&2; done; seq 20000"
    number = await start(local_box, script)
    whole, size, _ = await read(local_box, number)
    tagged = [(stream, byte) for stream, data in whole for byte in data]
    assert len(tagged) == size
    for offset in [0, size, *random.Random(7).sample(range(size), 40)]:
        rest, end, _ = await read(local_box, number, offset, follow=False)
        assert [(stream, byte) for stream, data in rest for byte in data] == tagged[offset:]
        assert end == size
    offset = 0
    collected: list[tuple[str | None, int]] = []
    for limit in itertools.cycle((1, 7, 1000, 30_000)):
        part, offset, _ = await read(local_box, number, offset, follow=False, limit=limit)
        collected += [(stream, byte) for stream, data in part for byte in data]
        if offset == size:
            break
    assert collected == tagged


async def test_a_reader_that_comes_back_misses_nothing(local_box: LocalBox) -> None:
    number = await start(local_box, "while read x; do echo $x; done", stdin=True)
    output, offset = b"", 0
    for turn in range(5):
        line = f"turn {turn} {'x' * (1 + turn * 5000)}\n".encode()
        async with (await commands(local_box)).output(number, offset, follow=True) as reader:
            await (await commands(local_box)).write(number, pieces_of(line), close=False)
            expected = len(output) + len(line)
            async with aclosing(reader.pieces()) as pieces:
                async for piece in pieces:
                    output, offset = output + piece.data, piece.next_offset
                    if offset == expected:
                        break
        assert output.endswith(line)
        await (await local_box.tunnel()).close()
        await local_box.tunnel()
    await (await commands(local_box)).signal(number, "TERM")
    state = await ended(local_box, number)
    assert (state.exit_code, state.signal) == (143, "TERM")


async def test_the_oldest_output_is_dropped_and_counted(local_box: LocalBox) -> None:
    capacity = command_messages.CAPACITY
    number = await start(local_box, f"head -c {capacity + 100_000} /dev/zero; echo end")
    state = await ended(local_box, number)
    total = capacity + 100_004
    assert (state.output_bytes, state.dropped_bytes) == (total, 100_004)
    pieces, offset, _ = await read(local_box, number, 50)
    assert pieces[0] == (None, b"%d" % (100_004 - 50))
    assert joined(pieces) == bytes(capacity - 4) + b"end\n"
    assert offset == total
    [file] = (local_box.root / "state/commands").iterdir()
    assert file.stat().st_size == capacity
    assert file.stat().st_mode & 0o777 == 0o600


async def test_output_whose_file_is_gone_counts_as_dropped(local_box: LocalBox) -> None:
    number = await start(local_box, "echo one; read x; echo two", stdin=True)
    await until_output(local_box, number, 4)
    [file] = (local_box.root / "state/commands").iterdir()
    file.unlink()
    await (await commands(local_box)).write(number, pieces_of(b"\n"), close=True)
    pieces, offset, state = await read(local_box, number)
    assert (pieces, offset) == ([(None, b"8")], 8)
    assert (state.output_bytes, state.dropped_bytes) == (8, 8)


async def until_output(box: LocalBox, number: str, size: int) -> None:
    """Wait until a command has written at least `size` bytes."""
    async with (
        (await commands(box)).output(number, 0, follow=True) as reader,
        aclosing(reader.pieces()) as pieces,
    ):
        async for piece in pieces:
            if piece.next_offset >= size:
                return


async def test_a_command_ends_at_its_timeout(local_box: LocalBox) -> None:
    number = await start(local_box, "trap '' TERM; echo begun; sleep 1000", timeout_s=1)
    pieces, _, state = await read(local_box, number)
    assert joined(pieces) == b"begun\n"
    assert joined(pieces, "stderr") == b"boxd: the command was ended after its timeout of 1 s\n"
    assert (state.exit_code, state.timeout_s) == (124, 1)


async def test_removal_ends_a_command_and_forgets_it(local_box: LocalBox) -> None:
    number = await start(local_box, "trap '' TERM HUP; echo begun; while :; do sleep 1000; done")
    await until_output(local_box, number, 6)
    state = await (await commands(local_box)).remove(number)
    assert (state.running, state.signal, state.exit_code) == (False, "KILL", 137)
    with pytest.raises(NotFound, match=f"no background command {number}"):
        await (await commands(local_box)).show(number)
    assert await (await commands(local_box)).all() == []
    assert list((local_box.root / "state/commands").iterdir()) == []


async def test_64_commands_are_stored(local_box: LocalBox) -> None:
    first = await start(local_box, "echo first")
    await ended(local_box, first)
    numbers = [await start(local_box, "exec sleep 1000") for _ in range(63)]
    assert len(await (await commands(local_box)).all()) == 64
    numbers.append(await start(local_box, "exec sleep 1000"))
    with pytest.raises(NotFound):
        await (await commands(local_box)).show(first)
    with pytest.raises(QuotaExceeded, match="already runs 64 background commands"):
        await start(local_box, "true")
    assert [state.id for state in await (await commands(local_box)).all()] == numbers
    assert len(list((local_box.root / "state/commands").iterdir())) == 64


async def test_requests_that_the_state_does_not_allow(local_box: LocalBox) -> None:
    number = await start(local_box, "exit 0")
    await ended(local_box, number)
    box = await commands(local_box)
    with pytest.raises(Conflict, match="has ended and reads no input"):
        await box.write(number, pieces_of(b"x" * 3_000_000), close=False)
    with pytest.raises(Conflict, match="has ended"):
        await box.signal(number, "TERM")
    with pytest.raises(BadRequest, match="after the end of the output"):
        await read(local_box, number, 1)
    with pytest.raises(BadRequest, match="one of HUP, INT"):
        await box.signal(number, "SEGV")
    for request in (box.show(UNKNOWN), box.remove(UNKNOWN), box.signal(UNKNOWN, "TERM")):
        with pytest.raises(NotFound):
            await request
    running = await start(local_box, "exec sleep 1000")
    with pytest.raises(Conflict, match=r"the input of command \w+ is closed"):
        await box.write(running, pieces_of(b"x"), close=False)


async def test_all_input_arrives(local_box: LocalBox) -> None:
    data = random.Random(3).randbytes(3_000_000)
    number = await start(local_box, "sha256sum", stdin=True)
    await (await commands(local_box)).write(number, pieces_of(data), close=True)
    pieces, _, _ = await read(local_box, number)
    assert joined(pieces).split()[0] == hashlib.sha256(data).hexdigest().encode()


async def until_full(box: LocalBox, number: str) -> None:
    """Wait until the pipe to a command's input is full."""
    state = await (await commands(box)).show(number)

    def full() -> bool:
        with open(f"/proc/{state.pid}/fd/0", "rb") as pipe:
            waiting = array.array("i", [0])
            fcntl.ioctl(pipe, termios.FIONREAD, waiting)
            return waiting[0] >= 60_000

    await until(full)


async def test_a_writer_that_leaves_blocks_no_other(local_box: LocalBox) -> None:
    """The command reads nothing until the first writer, whose input it cannot take, has left."""
    fifo = local_box.root / "go"
    os.mkfifo(fifo)
    number = await start(local_box, f"read go < {fifo}; cat | tail -c 4", stdin=True)
    box = await commands(local_box)
    first = asyncio.create_task(box.write(number, pieces_of(bytes(3_000_000)), close=False))
    await until_full(local_box, number)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(box.write(number, pieces_of(b"end\n"), close=True))
    await asyncio.to_thread(fifo.write_text, "go\n")
    await second
    pieces, _, _ = await read(local_box, number)
    assert joined(pieces) == b"end\n"


async def test_running_commands_are_reported(local_box: LocalBox) -> None:
    await until(lambda: local_box.commands == [0])
    number = await start(local_box, "read x", stdin=True)
    await until(lambda: local_box.commands == [0, 1])
    quiet = await start(local_box, "exec sleep 1000", keep_awake=False)
    assert not (await (await commands(local_box)).show(quiet)).keep_awake
    tunnel = await local_box.tunnel()
    await tunnel.close()
    await until(lambda: local_box.commands == [0, 1, 1])
    await (await commands(local_box)).write(number, pieces_of(b"\n"), close=False)
    await until(lambda: local_box.commands == [0, 1, 1, 0])
    second = await start(local_box, "exec sleep 1000")
    await until(lambda: local_box.commands[-1] == 1)
    assert await local_box.registry.quiesce(BOX_ID) == Presence(0, 1)
    await local_box.open()
    assert (await (await commands(local_box)).show(second)).running


async def test_a_fork_has_the_commands_of_its_origin(local_box: LocalBox) -> None:
    number = await start(local_box, "echo before; read x; echo after $x", stdin=True)
    await until_output(local_box, number, 7)
    await local_box.registry.quiesce(BOX_ID)
    local_box.become(OTHER, "fork")
    await local_box.open()
    await (await commands(local_box)).write(number, pieces_of(b"fork\n"), close=True)
    pieces, _, state = await read(local_box, number)
    assert joined(pieces) == b"before\nafter fork\n"
    assert state.exit_code == 0
    assert (await ended(local_box, await start(local_box, "exit 5"))).exit_code == 5


async def test_commands_end_with_the_agent(local_box: LocalBox) -> None:
    number = await start(local_box, "exec sleep 1000")
    state = await (await commands(local_box)).show(number)
    await local_box.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(state.pid, 0)
