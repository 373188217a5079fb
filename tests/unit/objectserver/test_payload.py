"""Bodies unframed and checked."""

from __future__ import annotations

import base64
import hashlib
import zlib

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectserver.errors import S3Error
from objectserver.payload import PayloadSink
from objectserver.sigv4 import ChunkChain, Payload, Verified

SHA256 = hashlib.sha256(b"").hexdigest()
CRC_TRAILER = {"x-amz-trailer": "x-amz-checksum-crc32"}


def verified(payload: Payload, sha256: str | None = None) -> Verified:
    return Verified("key", payload, sha256, chain())


def chain() -> ChunkChain:
    return ChunkChain(b"k" * 32, "20300101T000000Z", "20300101/r/s3/aws4_request", "f" * 64)


def framed(chunks: list[bytes], *, signed: bool = True, trailer: bool = False) -> bytes:
    """What a client sends for these chunks."""
    running, out = chain(), b""
    for chunk in [*chunks, b""]:
        signature = running.chunk(hashlib.sha256(chunk).hexdigest())
        extension = f";chunk-signature={signature}" if signed else ""
        out += f"{len(chunk):x}{extension}\r\n".encode()
        out += chunk + b"\r\n" if chunk else b""
    if trailer:
        crc = base64.b64encode(zlib.crc32(b"".join(chunks)).to_bytes(4, "big")).decode()
        out += f"x-amz-checksum-crc32:{crc}\r\n".encode()
        if signed:
            text = f"x-amz-checksum-crc32:{crc}\n".encode()
            signature = running.trailer(hashlib.sha256(text).hexdigest())
            out += f"x-amz-trailer-signature:{signature}\r\n".encode()
    return out + b"\r\n"


def take(payload: Payload, body: bytes, size: int, step: int, more: dict[str, str]) -> bytes:
    found = bytearray()
    headers = {"x-amz-decoded-content-length": str(size), **more}
    sink = PayloadSink(found.extend, verified(payload), headers)
    for at in range(0, len(body), step):
        sink.feed(memoryview(body[at : at + step]))
    sink.finish()
    return bytes(found)


KINDS = [
    (Payload.CHUNKS, True, False),
    (Payload.CHUNKS_TRAILER, True, True),
    (Payload.UNSIGNED_TRAILER, False, True),
]


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    step=st.integers(1, 100),
    kind=st.sampled_from(KINDS),
)
def test_frames_in_any_pieces(
    chunks: list[bytes], step: int, kind: tuple[Payload, bool, bool]
) -> None:
    payload, signed, trailer = kind
    body = framed(chunks, signed=signed, trailer=trailer)
    data = b"".join(chunks)
    more = CRC_TRAILER if trailer else {}
    assert take(payload, body, len(data), step, more) == data
    with pytest.raises(S3Error):
        take(payload, body, len(data) + 1, step, more)
    with pytest.raises(S3Error):
        take(payload, body[: len(body) // 2], len(data), step, more)


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4),
    at=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS[:2]),
)
def test_a_changed_byte_is_refused_or_means_nothing(
    chunks: list[bytes], at: int, kind: tuple[Payload, bool, bool]
) -> None:
    payload, signed, trailer = kind
    body = bytearray(framed(chunks, signed=signed, trailer=trailer))
    body[at % len(body)] ^= 1
    data = b"".join(chunks)
    try:
        found = take(payload, bytes(body), len(data), 50, CRC_TRAILER if trailer else {})
    except S3Error:
        return
    assert found == data


@given(st.binary(max_size=300))
def test_any_bytes_give_the_declared_error(body: bytes) -> None:
    for payload, _, _ in KINDS:
        with pytest.raises(S3Error):
            take(payload, body, 10**9, 7, {})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"zz\r\n", "InvalidRequest"),
        (b"5\r\nhello\r\n0\r\n\r\n", "InvalidRequest"),
        (b"x" * 9000, "InvalidRequest"),
        (b"1" * 20 + b"\r\n", "InvalidRequest"),
        (b"", "IncompleteBody"),
    ],
)
def test_malformed_frames(body: bytes, code: str) -> None:
    with pytest.raises(S3Error) as error:
        take(Payload.CHUNKS, body, 5, 5000, {})
    assert error.value.code == code


def test_a_promised_trailer_must_come_and_be_known() -> None:
    body = framed([b"data"], signed=False)
    with pytest.raises(S3Error) as error:
        take(Payload.UNSIGNED_TRAILER, body, 4, 50, CRC_TRAILER)
    assert error.value.code == "BadDigest"
    with pytest.raises(S3Error) as error:
        take(Payload.UNSIGNED_TRAILER, body, 4, 50, {"x-amz-trailer": "x-amz-checksum-new"})
    assert error.value.code == "NotImplemented"
    with pytest.raises(S3Error) as error:
        PayloadSink(bytearray().extend, verified(Payload.CHUNKS), {})
    assert error.value.code == "MissingContentLength"


def test_plain_bodies_and_their_etags() -> None:
    body = b"hello"
    sha256 = hashlib.sha256(body).hexdigest()
    crc = crc32c.crc32c(body).to_bytes(4, "big")
    sums = {
        "content-md5": hashlib.md5(body, usedforsecurity=False).digest(),
        "x-amz-checksum-crc32": zlib.crc32(body).to_bytes(4, "big"),
        "x-amz-checksum-crc32c": crc,
        "x-amz-checksum-sha1": hashlib.sha1(body, usedforsecurity=False).digest(),
        "x-amz-checksum-sha256": hashlib.sha256(body).digest(),
    }
    for name, value in sums.items():
        sink = PayloadSink(
            bytearray().extend,
            verified(Payload.HASHED, sha256),
            {name: base64.b64encode(value).decode()},
        )
        sink.feed(memoryview(body))
        etag = sink.finish()
        assert etag == (value.hex() if name == "content-md5" else f"{sha256[:32]}-1")
    tags = set()
    for _ in range(2):
        sink = PayloadSink(bytearray().extend, verified(Payload.UNSIGNED), {})
        sink.feed(memoryview(body))
        tags.add(sink.finish())
    assert len(tags) == 2
