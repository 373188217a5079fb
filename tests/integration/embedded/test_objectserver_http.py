"""Bad input to the object server, by raw sockets."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import socket
from http.client import HTTPResponse
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import pytest

from objectserver import http
from objectserver.__main__ import assemble
from objectserver.config import ServerConfig
from objectserver.files import ObjectFiles
from objectserver.keys import Credential, KeyTable
from objectserver.secret import Secret
from tests.harness.servers.s3raw import Answer, exchange, read_answer, send, signed_headers
from tests.harness.wait import until
from wrkfs.config import StoreConfig

if TYPE_CHECKING:
    from pathlib import Path

    from objectserver.http import HttpServer

TIMEOUT = 30.0


def key(store: StoreConfig, name: str = "x") -> str:
    return f"/{store.bucket}/{store.prefix}/{name}"


def connect(store: StoreConfig) -> socket.socket:
    parts = urlsplit(store.endpoint)
    return socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT)


class Answers(io.BufferedReader):
    """What a connection answers: the end of one answer and the beginning of the next may come at
    once, and a reader of its own for each would swallow that."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.makefile("rb", buffering=0))

    def makefile(self, _mode: str) -> Answers:
        """As a socket, for who reads one answer."""
        return self

    def close(self) -> None:
        """Who has read one answer does not end the others."""


def receive(connection: socket.socket | Answers) -> Answer:
    response = HTTPResponse(cast("socket.socket", connection))
    response.begin()
    return read_answer(response)


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def head(store: StoreConfig, method: str, target: str, body: bytes = b"", **more: str) -> bytes:
    headers = {**signed_headers(store, method, target, body=body), **more}
    lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def alive(store: StoreConfig) -> None:
    assert send(store, "PUT", key(store, "alive"), body=b"alive").status == 200
    assert send(store, "GET", key(store, "alive")).body == b"alive"


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /drive/x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"PUT /drive/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"PUT /drive/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"PUT /drive/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT /drive/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_bad_heads_are_refused(object_volume: StoreConfig, text: bytes) -> None:
    with connect(object_volume) as connection:
        connection.sendall(text)
        answer = receive(connection)
        assert answer.status in (400, 403, 411)
    alive(object_volume)


def test_a_head_that_is_too_long_is_refused(object_volume: StoreConfig) -> None:
    for filler in (b"X: " + b"y" * 70_000, b"GET /" + b"a" * 70_000, b"A: b\r\n" * 20_000):
        with connect(object_volume) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n" + filler)
            assert receive(connection).status == 400
            assert closed(connection)
    alive(object_volume)


@pytest.mark.parametrize("filler", [b"X: " + b"y" * 70_000, b"GET /" + b"a" * 70_000])
def test_who_still_sends_a_refused_head_hears_why(
    object_volume: StoreConfig, filler: bytes
) -> None:
    """What arrives after the answer must not destroy it, nor the connection that it is sent on."""
    with connect(object_volume) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + filler)
        assert connection.recv(1, socket.MSG_PEEK) == b"H"
        for _ in range(20):
            connection.sendall(filler)
        connection.sendall(b"\r\n\r\n")
        answer = receive(connection)
        assert (answer.status, answer.code) == (400, "InvalidRequest")


def test_who_sends_no_more_hears_all_answers(object_volume: StoreConfig) -> None:
    alive(object_volume)
    asked = head(object_volume, "GET", key(object_volume, "alive"))
    with connect(object_volume) as connection:
        connection.sendall(3 * asked)
        connection.shutdown(socket.SHUT_WR)
        answers = Answers(connection)
        assert [receive(answers).body for _ in range(3)] == [b"alive"] * 3
        assert answers.read() == b""


def test_a_body_cut_short_stores_nothing(object_volume: StoreConfig) -> None:
    for sent in (0, 10, 200_000):
        body = b"b" * 300_000
        target = key(object_volume, f"cut{sent}")
        with connect(object_volume) as connection:
            length = {"Content-Length": str(len(body))}
            connection.sendall(head(object_volume, "PUT", target, body, **length))
            connection.sendall(body[:sent])
            connection.shutdown(socket.SHUT_WR)
            answer = receive(connection)
            assert (answer.status, answer.code) == (400, "IncompleteBody")
        assert send(object_volume, "GET", target).code == "NoSuchKey"


def test_a_client_that_vanishes_stores_nothing(object_volume: StoreConfig) -> None:
    body = b"b" * 300_000
    target = key(object_volume, "gone")
    with connect(object_volume) as connection:
        connection.sendall(head(object_volume, "PUT", target, body, **{"Content-Length": "300000"}))
        connection.sendall(body[:100_000])
    alive(object_volume)
    assert send(object_volume, "GET", target).code == "NoSuchKey"


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_wrong_hash_stores_nothing(object_volume: StoreConfig, size: int) -> None:
    target = key(object_volume, f"wrong{size}")
    word = hashlib.sha256(b"other").hexdigest()
    answer = send(object_volume, "PUT", target, body=b"b" * size, payload=word)
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    assert send(object_volume, "GET", target).code == "NoSuchKey"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "BadDigest"),
        ({"Content-MD5": "short"}, "InvalidDigest"),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, "BadDigest"),
        ({"x-amz-checksum-crc32c": "AAAAAA=="}, "BadDigest"),
        ({"x-amz-checksum-sha1": "!"}, "BadDigest"),
        ({"x-amz-checksum-sha256": ""}, "BadDigest"),
        ({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, "NotImplemented"),
        ({"x-amz-meta-a": "b" * 9000}, "InvalidRequest"),
        ({"If-None-Match": '"tag"'}, "NotImplemented"),
        ({"Content-Encoding": "aws-chunked"}, "InvalidRequest"),
    ],
)
def test_wrong_promises_about_the_body(
    object_volume: StoreConfig, headers: dict[str, str], code: str
) -> None:
    target = key(object_volume, "promise")
    answer = send(object_volume, "PUT", target, headers=headers, body=b"body")
    assert answer.code == code
    assert send(object_volume, "GET", target).code == "NoSuchKey"


def test_pipelined_requests_are_answered_in_order(object_volume: StoreConfig) -> None:
    for name in ("a", "b"):
        body = name.encode() * 200_000
        assert send(object_volume, "PUT", key(object_volume, name), body=body).status == 200
    with connect(object_volume) as connection:
        connection.sendall(
            head(object_volume, "GET", key(object_volume, "a"))
            + head(object_volume, "PUT", key(object_volume, "c"), b"cc", **{"Content-Length": "2"})
            + b"cc"
            + head(object_volume, "GET", key(object_volume, "b"))
            + head(object_volume, "GET", key(object_volume, "c"))
        )
        answers = Answers(connection)
        found = [receive(answers) for _ in range(4)]
    assert [answer.status for answer in found] == [200] * 4
    assert found[0].body == b"a" * 200_000
    assert found[2].body == b"b" * 200_000
    assert found[3].body == b"cc"


def test_a_refused_body_is_not_awaited_and_never_taken_for_a_request(
    object_volume: StoreConfig,
) -> None:
    smuggled = head(object_volume, "DELETE", key(object_volume, "alive"))
    alive(object_volume)
    with connect(object_volume) as connection:
        text = (
            f"PUT /drive/foreign/x HTTP/1.1\r\nHost: x\r\nContent-Length: {len(smuggled)}\r\n\r\n"
        )
        connection.sendall(text.encode() + smuggled)
        assert receive(connection).status == 403
        assert closed(connection)
    assert send(object_volume, "GET", key(object_volume, "alive")).status == 200


def test_expect_continue_is_answered_before_and_only_for_the_accepted(
    object_volume: StoreConfig,
) -> None:
    more = {"Content-Length": "4", "Expect": "100-continue"}
    with connect(object_volume) as connection:
        connection.sendall(head(object_volume, "PUT", key(object_volume), b"body", **more))
        first = connection.recv(1024)
        assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"body")
        assert receive(connection).status == 200
    with connect(object_volume) as connection:
        connection.sendall(head(object_volume, "PUT", "/drive/foreign/x", b"body", **more))
        assert receive(connection).status == 403


def test_xml_bombs_and_nonsense_are_refused(object_volume: StoreConfig) -> None:
    target = f"/{object_volume.bucket}?delete"
    entity = b'<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><Delete>&b;</Delete>'
    deep = b"<a>" * 10_000 + b"</a>" * 10_000
    many = b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>"
    for body in (entity, deep, many, b"", b"<Delete>", b"\xff\xfe", b"<Delete></Delete>"):
        answer = send(object_volume, "POST", target, body=body)
        assert (answer.status, answer.code) == (400, "MalformedXML"), body[:40]
    answer = send(object_volume, "POST", target, body=b"x" * 5_000_000)
    assert answer.code == "EntityTooLarge"
    alive(object_volume)


def test_an_object_that_is_too_large_is_refused_before_its_body(
    object_volume: StoreConfig,
) -> None:
    more = {"Content-Length": str(6 * 1024**3)}
    with connect(object_volume) as connection:
        connection.sendall(head(object_volume, "PUT", key(object_volume), b"", **more))
        assert receive(connection).code == "EntityTooLarge"


def test_headers_of_an_object_cannot_carry_line_ends(object_volume: StoreConfig) -> None:
    target = key(object_volume, "split")
    signed = signed_headers(object_volume, "PUT", target, body=b"x")
    headers = [*signed.items(), ("Content-Type", "a\tb")]
    assert exchange(object_volume, "PUT", target, headers, b"x").status == 200
    answer = send(object_volume, "GET", target)
    assert answer.headers["content-type"] == "a\tb"
    with connect(object_volume) as connection:
        text = head(object_volume, "PUT", target, b"x", **{"Content-Length": "1"})
        evil = text.replace(b"\r\n\r\n", b"\r\nContent-Type: a\rX-Evil: b\r\n\r\n")
        connection.sendall(evil + b"x")
        assert receive(connection).status == 400


def test_idle_connections_do_not_keep_others_out(object_volume: StoreConfig) -> None:
    waiting = [connect(object_volume) for _ in range(300)]
    try:
        alive(object_volume)
    finally:
        for connection in waiting:
            connection.close()
    alive(object_volume)


async def begun(directory: Path) -> tuple[HttpServer, StoreConfig]:
    """A server in this process that takes four connections."""
    keys = KeyTable(directory / "keys.json")
    keys.add(Credential("key", Secret("secret"), "vol/"))
    config = ServerConfig(directory=str(directory), max_connections=4)
    server = assemble(config, keys, ObjectFiles(directory))
    port = await server.start("127.0.0.1", 0)
    return server, StoreConfig(f"http://127.0.0.1:{port}", "drive", "vol", "r", "key", "secret")


async def test_a_refused_body_is_read_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly it comes."""
    monkeypatch.setattr(http, "LINGER_TIMEOUT", 0.1)
    monkeypatch.setattr(http, "SWEEP", 0.01)
    server, store = await begun(tmp_path)
    with connect(store) as connection:
        connection.sendall(b"PUT /drive/foreign/x HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        assert (await asyncio.to_thread(receive, connection)).status == 403

        def is_cut() -> bool:
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        await until(is_cut)
    await server.stop(5)


@pytest.mark.parametrize(
    "text",
    [b"PUT /drive/foreign/x HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"GET\r\n\r\n"],
    ids=["a body", "a head"],
)
async def test_who_is_refused_and_gone_at_once_is_no_fault_of_ours(
    tmp_path: Path, text: bytes
) -> None:
    """The answer meets a closed socket, so that there is no connection any more to end."""
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    server, store = await begun(tmp_path)
    connection_made = http.Connection.connection_made
    served: list[asyncio.Task[None]] = []

    def note(self: http.Connection, transport: asyncio.BaseTransport) -> None:
        connection_made(self, transport)
        served.append(self.task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.Connection, "connection_made", note)
        with connect(store) as connection:
            connection.sendall(text)
        await until(lambda: served and served[0].done())
    served.clear()
    gc.collect()
    await server.stop(5)
    assert faults == []


async def test_too_many_connections_are_told_so(tmp_path: Path) -> None:
    server, store = await begun(tmp_path)
    held = [await asyncio.to_thread(connect, store) for _ in range(4)]
    await until(lambda: len(server.connections) == 4)
    with connect(store) as fifth:
        answer = await asyncio.to_thread(receive, fifth)
        assert (answer.status, answer.code) == (503, "SlowDown")
    held.pop().close()
    await until(lambda: len(server.connections) == 3)
    with connect(store) as sixth:
        sixth.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.to_thread(receive, sixth)).status == 403
    for connection in held:
        connection.close()
    await server.stop(5)


@pytest.mark.parametrize("piece", [200_000, 1000], ids=["at once", "dripped"])
@pytest.mark.parametrize(
    ("size", "status"), [(http.MAX_HEAD - 400, 403), (http.MAX_HEAD + 400, 400)]
)
def test_the_bound_of_a_head_is_the_same_however_it_arrives(
    object_volume: StoreConfig, size: int, status: int, piece: int
) -> None:
    begin = f"GET {key(object_volume)} HTTP/1.1\r\nHost: x\r\nX: ".encode()
    sent = begin + b"y" * (size - len(begin)) + b"\r\n\r\n"
    with connect(object_volume) as connection:
        for offset in range(0, len(sent), piece):
            connection.sendall(sent[offset : offset + piece])
        assert receive(connection).status == status
    alive(object_volume)


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: x\nX: y\r\n\r\n",
        b"Host: x\r\nX: y\nZ: z\r\n\r\n",
        b"Host: x\r\nX: y\r\n folded\r\n\r\n",
        b"Host: x\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
    ],
)
def test_heads_that_two_could_read_differently_are_refused(
    object_volume: StoreConfig, lines: bytes
) -> None:
    with connect(object_volume) as connection:
        connection.sendall(f"GET {key(object_volume)} HTTP/1.1\r\n".encode() + lines)
        assert receive(connection).status == 400
    alive(object_volume)
