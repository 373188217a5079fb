"""Operations on single objects: PUT, GET, HEAD, DELETE, copy."""

from __future__ import annotations

import os
import re
import time
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from objectserver.errors import S3Error, denied
from objectserver.files import ObjectFiles, ObjectInfo, OpenObject, Spool
from objectserver.http import FileBody, HttpResponse
from objectserver.names import check_key
from objectserver.payload import PayloadSink
from objectserver.xml import parse_rows, render, timestamp

if TYPE_CHECKING:
    from objectserver.service import Call
    from objectserver.xml import Value

MAX_OBJECT = 5 * 1024**3
"""Maximum size of the body of one PUT, in bytes (S3's limit)."""
MAX_DELETE = 1000
"""Maximum number of keys of one multi-delete (S3's limit)."""
MAX_XML = 4 * 1024 * 1024
"""Maximum size of an XML body, in bytes."""
MAX_HEADERS = 8 * 1024
"""Maximum total size of the headers stored with an object, in bytes."""
SMALL = 128 * 1024
"""Bodies up to this size in bytes are read in the thread that opened the file; larger ones are sent
by sendfile."""

_STORED_HEADERS = (
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
)
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Objects:
    """Handles the operations on objects. Stateless apart from the files; calls may interleave."""

    def __init__(self, files: ObjectFiles) -> None:
        self._files = files

    async def put(self, call: Call) -> HttpResponse:
        """PutObject, CopyObject."""
        if "x-amz-copy-source" in call.http.headers:
            return await self._copy(call)
        only_new = _only_new(call)
        spool, etag = await receive_body(call, self._files)
        try:
            info = ObjectInfo(spool.size, etag, time.time(), stored_headers(call.http.headers))
            await call.connection.run(self._publish, spool, info, call.key, only_new)
        finally:
            await call.connection.run(spool.discard)
        return HttpResponse(headers=[("ETag", f'"{etag}"')])

    async def get(self, call: Call) -> HttpResponse:
        """GetObject, with Range and conditions."""
        range_header = call.http.headers.get("range", "")
        return await call.connection.run(self._get, call, range_header)

    async def head(self, call: Call) -> HttpResponse:
        """HeadObject."""
        return await self.get(call)

    async def delete(self, call: Call) -> HttpResponse:
        """DeleteObject; a missing object is no error."""
        await call.connection.run(self._files.delete, [call.key])
        return HttpResponse(204)

    async def delete_many(self, call: Call) -> HttpResponse:
        """DeleteObjects; each key outside of the prefix is rejected individually."""
        sink_body = await receive_xml(call)
        rows = parse_rows(sink_body, "Object")
        if not rows or len(rows) > MAX_DELETE:
            raise S3Error("MalformedXML", f"a request must name 1 to {MAX_DELETE} objects")
        keys = [row.get("Key", "") for row in rows]
        allowed = [key for key in keys if call.credential.may(key)]
        for key in allowed:
            check_key(key)
        await call.connection.run(self._files.delete, allowed)
        quiet = b"<Quiet>true</Quiet>" in sink_body
        deleted: list[tuple[str, Value]] = [
            ("Deleted", [("Key", key)]) for key in allowed if not quiet
        ]
        error = denied()
        refused: list[tuple[str, Value]] = [
            ("Error", [("Key", key), ("Code", error.code), ("Message", error.text)])
            for key in keys
            if not call.credential.may(key)
        ]
        return xml_response(render("DeleteResult", [*deleted, *refused]))

    def _publish(self, spool: Spool, info: ObjectInfo, key: str, only_new: bool) -> None:
        spool.seal(info)
        self._files.publish(spool, key, only_new=only_new)

    def _get(self, call: Call, range_header: str) -> HttpResponse:
        opened = self._files.open(call.key)
        sends_file = False
        try:
            response = self._answer(call, opened, range_header)
            sends_file = isinstance(response.body, FileBody)
            return response
        finally:
            if not sends_file:
                os.close(opened.descriptor)

    def _answer(self, call: Call, opened: OpenObject, range_header: str) -> HttpResponse:
        info = opened.info
        headers = _headers(info)
        if _not_modified(call.http.headers, info):
            return HttpResponse(304, headers)
        start, size = 0, info.size
        status = 200
        span = _span(range_header, info.size)
        if span is not None:
            start, size = span
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{start + size - 1}/{info.size}"))
        if call.http.method == "HEAD":
            return HttpResponse(status, headers, length=size)
        if size <= SMALL:
            body = os.pread(opened.descriptor, size, start)
            if len(body) != size:
                raise OSError("the file is shorter than its metadata says")
            return HttpResponse(status, headers, body)
        os.posix_fadvise(opened.descriptor, start, size, os.POSIX_FADV_WILLNEED)
        return HttpResponse(status, headers, FileBody(opened.descriptor, start, size))

    async def _copy(self, call: Call) -> HttpResponse:
        source = unquote_to_bytes(call.http.headers["x-amz-copy-source"]).decode("utf-8", "replace")
        bucket, _, key = source.removeprefix("/").partition("/")
        if bucket != call.http.path.split("/")[1] or not call.credential.may(key):
            raise denied()
        check_key(key)
        replace = call.http.headers.get("x-amz-metadata-directive", "").upper() == "REPLACE"
        headers = stored_headers(call.http.headers) if replace else None
        info = await call.connection.run(self._copy_file, key, call.key, headers)
        return xml_response(
            render(
                "CopyObjectResult",
                [("LastModified", timestamp(info.modified)), ("ETag", f'"{info.etag}"')],
            )
        )

    def _copy_file(self, source: str, target: str, headers: dict[str, str] | None) -> ObjectInfo:
        opened = self._files.open(source)
        spool = None
        try:
            spool = self._files.spool()
            spool.append_file(opened.descriptor, opened.info.size)
            stored = opened.info.headers if headers is None else headers
            info = ObjectInfo(spool.size, opened.info.etag, time.time(), stored)
            self._publish(spool, info, target, False)
            return info
        finally:
            os.close(opened.descriptor)
            if spool is not None:
                spool.discard()


async def receive_body(call: Call, files: ObjectFiles) -> tuple[Spool, str]:
    """Receive a body into a new file, checked but not sealed. Return the file and its ETag.

    Raises S3Error, OSError; the file is then removed.
    """
    length = call.http.length
    if length is None:
        raise S3Error("MissingContentLength", "send Content-Length")
    if length > MAX_OBJECT:
        raise S3Error("EntityTooLarge", f"one PUT carries at most {MAX_OBJECT} bytes")
    spool = await call.connection.run(files.spool)
    try:
        sink = PayloadSink(spool.write, call.verified, call.http.headers)
        await call.connection.receive(sink.feed)
        return spool, sink.finish()
    except BaseException:
        spool.discard()
        raise


async def receive_xml(call: Call) -> bytes:
    """Receive a small body, checked like an object's. Raises S3Error."""
    if call.http.length is None:
        raise S3Error("MissingContentLength", "send Content-Length")
    body = bytearray()
    sink = PayloadSink(body.extend, call.verified, call.http.headers)
    sink.feed(memoryview(await call.connection.read(MAX_XML)))
    sink.finish()
    return bytes(body)


def xml_response(body: bytes) -> HttpResponse:
    """Return an answer with an XML body."""
    return HttpResponse(200, [("Content-Type", "application/xml")], body)


def stored_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of an upload that are stored and returned with the object.

    Raises S3Error if they are larger than MAX_HEADERS bytes.
    """
    stored = {
        name: value
        for name, value in headers.items()
        if name in _STORED_HEADERS or name.startswith("x-amz-meta-")
    }
    encoding = stored.get("content-encoding", "")
    if "aws-chunked" in encoding:
        rest = [part.strip() for part in encoding.split(",") if part.strip() != "aws-chunked"]
        stored["content-encoding"] = ",".join(rest)
        if not rest:
            del stored["content-encoding"]
    if sum(len(name) + len(value) for name, value in stored.items()) > MAX_HEADERS:
        raise S3Error(
            "InvalidRequest", f"the headers of an object may have at most {MAX_HEADERS} bytes"
        )
    return stored


def _headers(info: ObjectInfo) -> list[tuple[str, str]]:
    headers = [
        ("ETag", f'"{info.etag}"'),
        ("Last-Modified", formatdate(info.modified, usegmt=True)),
        ("Accept-Ranges", "bytes"),
    ]
    if "content-type" not in info.headers:
        headers.append(("Content-Type", "binary/octet-stream"))
    return headers + list(info.headers.items())


def _only_new(call: Call) -> bool:
    condition = call.http.headers.get("if-none-match")
    if condition not in (None, "*") or "if-match" in call.http.headers:
        raise S3Error("NotImplemented", "the only supported condition is If-None-Match: *")
    return condition == "*"


def _not_modified(headers: dict[str, str], info: ObjectInfo) -> bool:
    """Return whether the client already has the object. Raises S3Error PreconditionFailed."""
    tags = [tag.strip().strip('"') for tag in headers.get("if-match", "").split(",")]
    if "if-match" in headers and not {"*", info.etag} & set(tags):
        raise S3Error("PreconditionFailed", "the condition If-Match is not met")
    tags = [tag.strip().strip('"') for tag in headers.get("if-none-match", "").split(",")]
    if "if-none-match" in headers:
        return bool({"*", info.etag} & set(tags))
    since = _date(headers.get("if-modified-since"))
    if since is not None:
        return int(info.modified) <= since
    until = _date(headers.get("if-unmodified-since"))
    if until is not None and "if-match" not in headers and int(info.modified) > until:
        raise S3Error("PreconditionFailed", "the condition If-Unmodified-Since is not met")
    return False


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


def _span(range_header: str, size: int) -> tuple[int, int] | None:
    """Return (start, length) of a Range header; None for the whole object. Raises S3Error."""
    match = _RANGE.fullmatch(range_header.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        start = size - length
    else:
        start = int(match[1])
        end = min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < start:
            return None
        length = end - start + 1
    if length <= 0 or start >= size:
        raise S3Error("InvalidRange", "the range starts after the end of the object")
    return start, length
