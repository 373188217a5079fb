"""The side of a program in a box of a WebSocket, with bytes as hostile ones may send them."""

from __future__ import annotations

import pytest

from boxd.http.proxy.bridge import MAX_OWED, AppSocket
from tests.harness.http.upstream import Scripted

TEXT, BINARY, CONT, CLOSE, PING = 1, 2, 0, 8, 9


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """One frame of a server."""
    size = len(data)
    head = bytes([opcode | (0x80 if fin else 0)])
    if size < 126:
        return head + bytes([size]) + data
    return head + bytes([127]) + size.to_bytes(8, "big") + data


async def messages(stream: Scripted, begun: bytes = b"") -> tuple[list[bytes | str], AppSocket]:
    """All that comes, until it is over."""
    app = AppSocket(stream, begun)
    found: list[bytes | str] = []
    while (message := await app.next()) is not None:
        found.append(message)
    return found, app


async def test_what_comes_with_the_handshake_is_not_lost() -> None:
    stream = Scripted([frame(TEXT, b"two") + frame(CLOSE, b"\x0f\xa1why")])
    found, app = await messages(stream, frame(TEXT, b"one") + frame(BINARY, b"\xff"))
    assert found == ["one", b"\xff", "two"]
    assert app.ending == (4001, "why")


async def test_a_message_in_very_many_fragments() -> None:
    count = 50_000
    data = frame(BINARY, b"x", fin=False) + frame(CONT, b"y", fin=False) * count + frame(CONT)
    found, app = await messages(Scripted([data, frame(CLOSE)]))
    assert found == [b"x" + b"y" * count]
    assert app.ending == (1000, "")


async def test_a_flood_of_pings_is_answered_before_more_is_read() -> None:
    stream = Scripted([frame(PING, b"?")] * 3 * MAX_OWED + [frame(TEXT, b"done")])
    app = AppSocket(stream, b"")
    assert await app.next() == "done"
    pong = 2 + 4 + 1  # head, mask, data
    assert len(stream.written) >= 2 * MAX_OWED * pong
    await app.finish()
    assert len(stream.written) == 3 * MAX_OWED * pong


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"\xff"), 1011),
        (frame(CONT, b"x"), 1011),
        (b"\xff" * 20, 1011),
        (frame(CLOSE, b"\x03"), 1011),
        (frame(BINARY, b"")[:1] + b"\x7f" + (2**40).to_bytes(8, "big"), 1009),
        (b"", 1011),
    ],
)
async def test_an_app_that_breaks_the_rules(sent: bytes, code: int) -> None:
    found, app = await messages(Scripted([frame(TEXT, b"first"), sent, frame(TEXT, b"late")]))
    assert found[0] == "first"
    assert app.ending[0] == code


async def test_an_app_whose_text_is_none_is_told_so() -> None:
    stream = Scripted([frame(TEXT, b"\xff")])
    found, app = await messages(stream)
    await app.finish()
    assert found == []
    assert stream.written[0] == 0x80 | CLOSE
