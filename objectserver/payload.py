"""Processes bodies of uploads: removes the framing, hashes the data, checks it against the request.

Blocking; threads call it with one piece after the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import zlib
from typing import TYPE_CHECKING, Protocol

import crc32c

from objectserver.errors import S3Error
from objectserver.secret import same
from objectserver.sigv4 import Payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from objectserver.sigv4 import Verified

MAX_LINE = 8192
"""Maximum length of a chunk header or trailer line, in bytes."""
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,10})(?:;chunk-signature=([0-9a-f]{64}))?")


class Hash(Protocol):
    """Interface of all checksums."""

    def update(self, data: memoryview, /) -> None:
        """Add data."""
        ...

    def digest(self) -> bytes:
        """Return the checksum, big-endian."""
        ...


class _Crc:
    def __init__(self, function: Callable[[memoryview, int], int]) -> None:
        self._function = function
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_CHECKSUMS: dict[str, Callable[[], Hash]] = {
    "x-amz-checksum-crc32": lambda: _Crc(zlib.crc32),
    "x-amz-checksum-crc32c": lambda: _Crc(crc32c.crc32c),
    "x-amz-checksum-sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "x-amz-checksum-sha256": hashlib.sha256,
}


class PayloadSink:
    """Takes a body as it is sent and passes its data to `write`.

    MD5 costs twice as much as SHA-256 here (*measured* 570 and 1,290 MiB/s), so it is computed only
    for clients that send Content-MD5. Other ETags have a form that clients do not mistake for an
    MD5.
    """

    def __init__(
        self,
        write: Callable[[memoryview], None],
        verified: Verified,
        headers: dict[str, str],
    ) -> None:
        """Raises S3Error for unknown or malformed checksums."""
        self._write = write
        self._verified = verified
        self.size = 0
        self._sha256 = hashlib.sha256() if verified.payload is Payload.HASHED else None
        self._md5, self._md5_wanted = _content_md5(headers)
        self._sums: dict[str, Hash] = {}
        self._promised: dict[str, str] = {}
        for name, value in headers.items():
            if name in _CHECKSUMS:
                self._promised[name] = value
                self._sums[name] = _CHECKSUMS[name]()
            elif re.fullmatch("x-amz-checksum-(?!type$|algorithm$|mode$).*", name):
                raise S3Error("NotImplemented", f"{name} is not supported")
        self._decoder: _ChunkDecoder | None = None
        if verified.payload in _CHUNKED:
            self._length = _decoded_length(headers)
            for name in headers.get("x-amz-trailer", "").lower().replace(",", " ").split():
                if name not in _CHECKSUMS:
                    raise S3Error("NotImplemented", f"the trailer {name} is not supported")
                self._sums[name] = _CHECKSUMS[name]()
            self._decoder = _ChunkDecoder(self._data, verified)
        elif "aws-chunked" in headers.get("content-encoding", ""):
            raise S3Error("InvalidRequest", "the body is aws-chunked, but its signature is not")

    def feed(self, data: memoryview) -> None:
        """Process the next bytes of the body. Raises S3Error, OSError."""
        if self._decoder is None:
            self._data(data)
        else:
            self._decoder.feed(data)

    def finish(self) -> str:
        """Return the ETag, without quotes, if the body is complete and correct. Raises S3Error."""
        if self._decoder is not None:
            self._promised.update(self._decoder.finish())
            if self.size != self._length:
                raise S3Error("IncompleteBody", "x-amz-decoded-content-length is wrong")
        sha256 = None if self._sha256 is None else self._sha256.hexdigest()
        if sha256 is not None and not same(sha256, self._verified.sha256 or ""):
            raise S3Error("XAmzContentSHA256Mismatch", "the body is not the one that was signed")
        for name, checksum in self._sums.items():
            if _base64(self._promised.get(name, "")) != checksum.digest():
                raise S3Error("BadDigest", f"{name} does not match the body")
        if self._md5 is not None:
            if self._md5.digest() != self._md5_wanted:
                raise S3Error("BadDigest", "Content-MD5 does not match the body")
            return self._md5.digest().hex()
        return f"{secrets.token_hex(16) if sha256 is None else sha256[:32]}-1"

    def _data(self, data: memoryview) -> None:
        self.size += len(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._md5 is not None:
            self._md5.update(data)
        for checksum in self._sums.values():
            checksum.update(data)
        self._write(data)


_CHUNKED = (Payload.CHUNKS, Payload.CHUNKS_TRAILER, Payload.UNSIGNED_TRAILER)


class _ChunkDecoder:
    """Removes the `aws-chunked` framing and checks its signatures."""

    def __init__(self, write: Callable[[memoryview], None], verified: Verified) -> None:
        self._write = write
        self._chain = verified.chain
        self._signed = verified.payload is not Payload.UNSIGNED_TRAILER
        self._has_trailer = verified.payload is not Payload.CHUNKS
        self._line = bytearray()
        self._remaining = 0
        self._gap = False
        self._hash = hashlib.sha256()
        self._signature: str | None = None
        self._trailer: list[tuple[str, str]] | None = None
        self._complete = False

    def feed(self, data: memoryview) -> None:
        while data:
            if self._remaining:
                piece, data = data[: self._remaining], data[self._remaining :]
                self._remaining -= len(piece)
                if self._signed:
                    self._hash.update(piece)
                self._write(piece)
                if not self._remaining:
                    self._end_chunk()
                    self._gap = True
                continue
            data = self._take_line(data)

    def finish(self) -> dict[str, str]:
        """Return the trailing headers.

        Raises S3Error if the end is missing or its signature is wrong.
        """
        if self._trailer is None or self._line or (self._has_trailer and not self._complete):
            raise S3Error("IncompleteBody", "the last chunk is missing")
        fields = dict(self._trailer)
        signature = fields.pop("x-amz-trailer-signature", None)
        if self._signed and self._has_trailer:
            text = "".join(f"{name}:{value}\n" for name, value in fields.items())
            expected = self._chain.trailer(hashlib.sha256(text.encode("utf-8")).hexdigest())
            if signature is None or not same(signature, expected):
                raise S3Error("SignatureDoesNotMatch", "the trailer's signature is wrong")
        return fields

    def _take_line(self, data: memoryview) -> memoryview:
        """Move bytes up to the next line end into `_line`, and process a complete line."""
        window = bytes(data[:MAX_LINE])
        at = window.find(b"\n")
        self._line += window if at < 0 else window[: at + 1]
        if len(self._line) > MAX_LINE:
            raise S3Error("InvalidRequest", "a chunk header is too long")
        if at >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n") and self._trailer is None:
                raise S3Error("InvalidRequest", "a chunk header is malformed")
            self._on_line(line.rstrip(b"\r\n"))
        return data[len(window) if at < 0 else at + 1 :]

    def _on_line(self, line: bytes) -> None:
        if self._trailer is not None:
            self._on_trailer(line)
        elif self._gap:
            if line:
                raise S3Error("InvalidRequest", "a chunk is longer than announced")
            self._gap = False
        else:
            match = _CHUNK.fullmatch(line)
            if match is None or (match[2] is None) is self._signed:
                raise S3Error("InvalidRequest", "a chunk header is malformed")
            self._remaining = int(match[1], 16)
            self._signature = match[2].decode("ascii") if match[2] else None
            if not self._remaining:
                self._end_chunk()
                self._trailer = []

    def _on_trailer(self, line: bytes) -> None:
        if not line:
            self._complete = True
            return
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon or not self._has_trailer or len(self._trailer or ()) > 16:
            raise S3Error("InvalidRequest", "the trailer is malformed")
        if self._trailer is not None:
            self._trailer.append((name.strip().lower(), value.strip()))

    def _end_chunk(self) -> None:
        if self._signed:
            expected = self._chain.chunk(self._hash.hexdigest())
            if not same(self._signature or "", expected):
                raise S3Error("SignatureDoesNotMatch", "a chunk's signature is wrong")
            self._hash = hashlib.sha256()


def _content_md5(headers: dict[str, str]) -> tuple[Hash | None, bytes]:
    value = headers.get("content-md5")
    if value is None:
        return None, b""
    digest = _base64(value)
    if len(digest) != 16:
        raise S3Error("InvalidDigest", "Content-MD5 is malformed")
    return hashlib.md5(usedforsecurity=False), digest


def _decoded_length(headers: dict[str, str]) -> int:
    value = headers.get("x-amz-decoded-content-length", "")
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise S3Error("MissingContentLength", "x-amz-decoded-content-length is missing")
    return int(value)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
