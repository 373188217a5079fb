"""The client before servers that cut, stall and lie: a typed error in time, and no wrong data."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING

import pytest

from boxd_client import (
    AnswerTooLarge,
    AsyncClient,
    BoxError,
    BoxInfo,
    Client,
    Conflict,
    ConnectionLost,
    Exit,
    Forbidden,
    InvalidRequest,
    NotFound,
    Output,
    ProtocolError,
    QuotaExceeded,
    RequestTimeout,
    ServiceError,
    ServiceFailed,
    StorageFull,
    Unauthorized,
    Unavailable,
)
from tests.harness.clients.forms import KEY, blocking, concurrent
from tests.harness.clients.hostile import (
    answer,
    chunked,
    hostile,
    resets,
    says,
    stalls,
    trickles,
)

if TYPE_CHECKING:
    from tests.harness.clients.forms import Form
    from tests.harness.clients.hostile import HostileServer, Reply

BOX = {"id": "0" * 32, "name": "web", "ref": "web", "state": "running"}
EXIT = b'event: exit\ndata: {"code": 0}\n\n'
REFUSAL = b'{"error": "no box web"}'


@pytest.fixture(params=[blocking, concurrent], ids=["sync", "async"])
def form(request: pytest.FixtureRequest) -> Form:
    """Return one form of the client."""
    chosen: Form = request.param
    return chosen


def event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), base64.b64encode(data))


def info(form: Form, server: HostileServer, timeout: float = 10.0) -> BoxInfo:
    box: BoxInfo = form(server.url, lambda client: client.box("web").info(), timeout=timeout)
    return box


def run(form: Form, server: HostileServer, timeout: float = 10.0) -> object:
    return form(server.url, lambda client: client.box("web").stream("true"), timeout=timeout)


@pytest.mark.parametrize(
    "reply",
    [
        says(b""),
        says(b"HTTP/1.1 200 OK\r\nconte"),
        says(answer(json.dumps(BOX).encode())[:-3]),
        resets(answer(json.dumps(BOX).encode())[:-3]),
        says(chunked(b'{"id": ', kind="application/json", complete=False)),
        says(b"SSH-2.0-OpenSSH_9.2\r\n"),
        says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
        says(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"),
        says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
        says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000),
    ],
)
def test_a_broken_answer_is_a_lost_connection(form: Form, reply: Reply) -> None:
    with hostile(reply) as server, pytest.raises(ConnectionLost):
        info(form, server)
    assert len(server.requests) == 3  # a GET is repeated


@pytest.mark.parametrize(
    "text",
    [
        answer(b"[]"),
        answer(b"{}"),
        answer(b"nul"),
        answer(b""),
        answer(b"\xff\xfe"),
        answer(b"[" * 100_000),
        answer(json.dumps(BOX).encode(), kind="text/html"),
        answer(json.dumps(BOX | {"created": "yesterday"}).encode()),
        answer(json.dumps(BOX | {"state": 5}).encode()),
        answer(json.dumps(BOX).encode(), content_encoding="gzip"),
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + json.dumps(BOX).encode(),
        answer(b"", "302 Found", location="http://127.0.0.1:1/"),
        answer(b"", "304 Not Modified"),
        answer(json.dumps(BOX).encode()[:-1]),
    ],
)
def test_a_wrong_answer_breaks_the_protocol(form: Form, text: bytes) -> None:
    with hostile(says(text)) as server, pytest.raises(ProtocolError):
        info(form, server)
    assert len(server.requests) == 1


def test_a_redirect_does_not_carry_the_key(form: Form) -> None:
    with hostile(says(answer(json.dumps(BOX).encode()))) as other:
        text = answer(b"", "307 Temporary Redirect", location=other.url)
        with hostile(says(text)) as server, pytest.raises(ProtocolError, match="redirects"):
            info(form, server)
        assert other.requests == []


def test_unknown_members_are_kept_and_ignored(form: Form) -> None:
    body = json.dumps(BOX | {"colour": "blue"}).encode()
    with hostile(says(answer(body))) as server:
        box = info(form, server)
    assert box.raw["colour"] == "blue"


@pytest.mark.parametrize(
    "reply",
    [
        stalls(),
        stalls(b"HTTP/1.1 200 OK\r\n"),
        stalls(answer(json.dumps(BOX).encode())[:-3]),
        trickles(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        trickles(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        trickles(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n", b" "),
        trickles(b"HTTP/1.1 500 No\r\ncontent-length: 99999\r\n\r\n", b" "),
    ],
)
def test_silence_ends_in_time(form: Form, reply: Reply) -> None:
    with hostile(reply) as server, pytest.raises(RequestTimeout):
        info(form, server, timeout=0.3)


def test_a_huge_answer_is_not_read(form: Form) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n"
    )
    with hostile(trickles(head, b" " * 4_000_000)) as server, pytest.raises(AnswerTooLarge):
        info(form, server, timeout=60.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (418, InvalidRequest),
        (429, QuotaExceeded),
        (500, ServiceFailed),
        (503, Unavailable),
        (507, StorageFull),
    ],
)
def test_each_status_has_its_error(form: Form, status: int, kind: type[ServiceError]) -> None:
    text = answer(REFUSAL, f"{status} No", retry_after="9999", x_request_id="r1")
    with hostile(says(text)) as server, pytest.raises(kind, match="no box web") as caught:
        info(form, server)
    error = caught.value
    assert (error.status, error.request_id) == (status, "r1")
    if isinstance(error, QuotaExceeded | Unavailable):
        assert error.retry_after == 9999
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": 5}', b"[" * 50_000, b"\xff" * 99])
def test_an_error_without_a_text_names_its_status(form: Form, body: bytes) -> None:
    with hostile(says(answer(body, "404 No"))) as server, pytest.raises(NotFound, match="404"):
        info(form, server)


def test_a_busy_service_is_asked_again(form: Form) -> None:
    busy = says(answer(REFUSAL, "503 Busy", retry_after="0"))
    with hostile(busy, says(answer(json.dumps(BOX).encode()))) as server:
        info(form, server)
    assert len(server.requests) == 2


def test_attempts_are_bounded(form: Form) -> None:
    busy = says(answer(REFUSAL, "503 Busy", retry_after="0"))
    with hostile(busy) as server, pytest.raises(Unavailable):
        info(form, server)
    assert len(server.requests) == 3


def test_a_creation_is_repeated_with_the_same_key(form: Form) -> None:
    replies = (
        says(b""),
        says(answer(REFUSAL, "409 Conflict")),
        says(answer(json.dumps(BOX).encode(), "201 Created")),
    )
    with hostile(*replies) as server:
        form(server.url, lambda client: client.boxes.create("ws1/web", image="debian"))
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert (len(server.requests), len(keys)) == (3, 1)
    assert server.requests[0].line.startswith("POST /v1/boxes?ws=ws1 ")
    assert json.loads(server.requests[0].body) == {"name": "web", "image": "debian"}


def test_the_first_conflict_of_a_creation_is_final(form: Form) -> None:
    with hostile(says(answer(REFUSAL, "409 Conflict"))) as server, pytest.raises(Conflict):
        form(server.url, lambda client: client.boxes.create("web"))
    assert len(server.requests) == 1


def test_a_removal_whose_answer_was_lost_succeeds(form: Form) -> None:
    with hostile(says(b""), says(answer(REFUSAL, "404 No"))) as server:
        form(server.url, lambda client: client.box("web").remove())
    assert len(server.requests) == 2


def test_a_command_is_never_repeated(form: Form) -> None:
    for reply in (says(b""), says(answer(REFUSAL, "503 Busy", retry_after="0"))):
        with hostile(reply) as server, pytest.raises(BoxError):
            run(form, server)
        assert len(server.requests) == 1


def test_nobody_listens(form: Form) -> None:
    with hostile(says(b"")) as server:
        url = server.url
    with pytest.raises(ConnectionLost, match="cannot connect"):
        form(url, lambda client: client.box("web").info())


def test_a_stream_in_odd_pieces(form: Form) -> None:
    text = b": hi\n\n" + event("stdout", "é".encode()[:1]) + event("stdout", "é!".encode()[1:])
    text = text.replace(b"\n", b"\r\n") + b"event: news\ndata: later\n\nid: 7\n\n" + EXIT
    pieces = [text[place : place + 1] for place in range(len(text))]
    with hostile(says(chunked(*pieces))) as server:
        events = run(form, server)
    assert events == [Output("stdout", b"\xc3", ""), Output("stdout", b"\xa9!", "é!"), Exit(0)]


@pytest.mark.parametrize(
    "text",
    [
        chunked(),
        chunked(event("stdout", b"x")),
        chunked(event("stdout", b"x"), complete=False),
        chunked(event("stdout", b"x"), EXIT[:-1]),
        chunked(event("stdout", b"x"), EXIT[:10], complete=False),
    ],
)
def test_a_stream_without_an_end_is_a_lost_connection(form: Form, text: bytes) -> None:
    with hostile(says(text)) as server, pytest.raises(ConnectionLost):
        run(form, server)


@pytest.mark.parametrize(
    "text",
    [
        chunked(EXIT, event("stdout", b"x")),
        chunked(EXIT + EXIT),
        chunked(b"event: exit\ndata: {}\n\n"),
        chunked(b'event: exit\ndata: {"code": "0"}\n\n'),
        chunked(b'event: exit\ndata: {"code": true}\n\n'),
        chunked(b'event: exit\ndata: {"code": -1}\n\n'),
        chunked(b"event: exit\ndata: [1]\n\n"),
        chunked(b"event: exit\n\n"),
        chunked(b"event: stdout\ndata: !!!!\n\n", EXIT),
        chunked(b"event: stdout\ndata: \xff\xfe\n\n", EXIT),
        chunked(b"event: std\xffout\ndata: eA==\n\n", EXIT),
        chunked(b"data: " + b"A" * 5_000_000),
        chunked(b"event: stdout\n" + b"data: QUFB\n" * 600_000),
        chunked(EXIT, kind="application/json"),
        chunked(EXIT, kind="text/html"),
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EXIT,
    ],
)
def test_a_wrong_stream_breaks_the_protocol(form: Form, text: bytes) -> None:
    with hostile(says(text)) as server, pytest.raises(ProtocolError):
        run(form, server)


def test_the_end_of_a_stream_does_not_wait_for_its_connection(form: Form) -> None:
    with hostile(stalls(chunked(EXIT, complete=False))) as server:
        assert run(form, server) == [Exit(0)]


def test_a_silent_stream_ends_in_time(form: Form) -> None:
    with (
        hostile(stalls(chunked(b": hi\n\n", complete=False))) as server,
        pytest.raises(RequestTimeout),
    ):
        run(form, server, timeout=0.3)


def test_output_is_bounded(form: Form) -> None:
    text = chunked(event("stdout", b"x" * 1000), event("stderr", b"y" * 1000), EXIT)
    with hostile(says(text)) as server:
        with pytest.raises(AnswerTooLarge):
            form(server.url, lambda client: client.box("web").exec("true", limit=1999))
        result = form(server.url, lambda client: client.box("web").exec("true", limit=2000))
    assert (result.exit_code, len(result.stdout)) == (0, 1000)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (answer(b"abc", "206 Partial Content", "x/y", content_range="bytes 0-2/9"), ProtocolError),
        (answer(b"abc", "206 Partial Content", "x/y", content_range="bytes 2-3/9"), ProtocolError),
        (answer(b"abc", "206 Partial Content", "x/y", content_range="bytes 2-9/10"), ProtocolError),
        (answer(b"abc", "206 Partial Content", "x/y", content_range="bytes */9"), ProtocolError),
        (answer(b"abc", "206 Partial Content", "x/y", content_range="bytes 2-2/9"), ProtocolError),
        (answer(b"abc", "206 Partial Content", "x/y"), ProtocolError),
        (answer(b"abc", "200 OK", "x/y"), ProtocolError),
        (answer(b"ab", "206 Partial Content", "x/y", content_range="bytes 2-4/9"), ConnectionLost),
        (answer(b"abcd", "206 Partial Content", "x/y", content_range="bytes 2-4/9"), ProtocolError),
    ],
)
def test_another_range_than_the_requested_one(
    form: Form, text: bytes, kind: type[BoxError]
) -> None:
    with hostile(says(text)) as server, pytest.raises(kind):
        form(server.url, lambda client: client.drive().read("f", start=2, end=5))


def test_the_requested_range(form: Form) -> None:
    text = answer(b"cde", "206 Partial Content", "x/y", content_range="bytes 2-4/9")
    with hostile(says(text)) as server:
        read = form(server.url, lambda client: client.drive("ws1").read("a b/f", start=2, end=5))
    assert read == b"cde"
    assert server.requests[0].line == "GET /v1/wrk/a%20b/f?ws=ws1 HTTP/1.1"
    assert server.requests[0].headers["range"] == "bytes=2-4"


def test_a_cut_file_is_a_lost_connection(form: Form) -> None:
    with hostile(says(answer(b"abcdef", kind="x/y")[:-1])) as server, pytest.raises(ConnectionLost):
        form(server.url, lambda client: client.drive().read("f"))


def test_pages_that_do_not_end(form: Form) -> None:
    page = {"dir": True, "path": "", "entries": [], "next": "again"}
    with (
        hostile(says(answer(json.dumps(page).encode()))) as server,
        pytest.raises(ProtocolError, match="do not end"),
    ):
        form(server.url, lambda client: client.drive().list())
    assert len(server.requests) == 2


def test_a_tail_continues_where_it_was_cut(form: Form) -> None:
    first = b"id: 2\n" + event("stdout", b"ab")
    second = b"id: 3\n" + event("stdout", b"c")
    replies = (
        says(chunked(first, second[:-5], complete=False)),
        says(answer(REFUSAL, "503 Busy", retry_after="0")),
        resets(chunked(second, complete=False)),
        says(chunked(EXIT)),
    )
    with hostile(*replies) as server:
        events = form(server.url, lambda client: client.box("web").command("c1").output())
    assert events == [Output("stdout", b"ab", "ab"), Output("stdout", b"c", "c"), Exit(0)]
    marks = [request.headers.get("last-event-id") for request in server.requests]
    assert marks == [None, "2", "2", "3"]


def test_a_tail_gives_up_after_failures_without_progress(form: Form) -> None:
    with hostile(says(chunked(complete=False))) as server, pytest.raises(ConnectionLost):
        form(server.url, lambda client: client.box("web").command("c1").output())
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "text",
    [
        chunked(b'event: done\ndata: {}\n\nevent: exit\ndata: {"box": "a", "code": 0}\n\n'),
        chunked(b'event: exit\ndata: {"box": "a", "code": 0}\n\n' * 2),
        chunked(b'event: exit\ndata: {"code": 0}\n\n'),
        chunked(b'event: stdout\ndata: {"box": "a", "data": 5}\n\n'),
    ],
)
def test_a_wrong_batch_breaks_the_protocol(form: Form, text: bytes) -> None:
    with hostile(says(text)) as server, pytest.raises(ProtocolError):
        form(server.url, lambda client: client.batch(["a", "b"], "true"))


async def _asynchronous(url: str) -> None:
    async with AsyncClient(url, KEY, timeout=0.5) as client, client.box("web").terminal() as shell:
        await shell.read()


def _blocking(url: str) -> None:
    with Client(url, KEY, timeout=0.5) as client, client.box("web").terminal() as shell:
        shell.read()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (says(answer(REFUSAL, "404 No")), NotFound),
        (says(answer(REFUSAL, "401 No")), Unauthorized),
        (says(answer(b"", "302 Found", location="http://127.0.0.1:1/")), BoxError),
        (says(answer(b"{}")), ProtocolError),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), ProtocolError),
        (says(b""), ProtocolError),
        (says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"), ProtocolError),
        (stalls(), RequestTimeout),
    ],
)
def test_a_terminal_that_does_not_open(reply: Reply, kind: type[BoxError]) -> None:
    with hostile(reply) as server:
        with pytest.raises(kind):
            _blocking(server.url)
        with pytest.raises(kind):
            asyncio.run(_asynchronous(server.url))
