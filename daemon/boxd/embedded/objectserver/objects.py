"""Operations on single objects: PUT, GET, HEAD, DELETE, copy."""

from __future__ import annotations

import os
import re
import time
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from boxd.embedded.objectfiles import ObjectFiles, ObjectInfo, OpenObject, Spool
from boxd.embedded.objectnames import check_key
from boxd.embedded.objectserver.errors import S3Error, denied
from boxd.embedded.objectserver.http import FileBody, HttpResponse
from boxd.embedded.objectserver.payload import PayloadSink
from boxd.embedded.objectserver.xml import parse_rows, render, timestamp

if TYPE_CHECKING:
    from boxd.embedded.objectserver.service import Call
    from boxd.embedded.objectserver.xml import Value

MAX_OBJECT = 5 * 1024**3
"""Largest body of one PUT, bytes (S3's limit)."""
MAX_DELETE = 1000
"""Most keys of one multi-delete (S3's limit)."""
MAX_XML = 4 * 1024 * 1024
MAX_HEADERS = 8 * 1024
"""Bytes of all headers kept with an object."""
SMALL = 128 * 1024
"""Up to this size a body is read in the thread that opened it; above it leaves by sendfile."""

_KEPT = (
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
)
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Objects:
    """Stateless beside the files; any calls may interleave."""

    def __init__(self, files: ObjectFiles) -> None:
        self._files = files

    async def put(self, call: Call) -> HttpResponse:
        """PutObject, CopyObject."""
        if "x-amz-copy-source" in call.http.headers:
            return await self._copy(call)
        only_new = _only_new(call)
        spool, etag = await receive_body(call, self._files)
        try:
            info = ObjectInfo(spool.size, etag, time.time(), kept_headers(call.http.headers))
            await call.connection.run(self._publish, spool, info, call.key, only_new)
        finally:
            await call.connection.run(spool.discard)
        return HttpResponse(headers=[("ETag", f'"{etag}"')])

    async def get(self, call: Call) -> HttpResponse:
        """GetObject, with Range and conditions."""
        wanted = call.http.headers.get("range", "")
        return await call.connection.run(self._get, call, wanted)

    async def head(self, call: Call) -> HttpResponse:
        """HeadObject."""
        return await self.get(call)

    async def delete(self, call: Call) -> HttpResponse:
        """DeleteObject; an absent one is no error."""
        await call.connection.run(self._files.delete, [call.key])
        return HttpResponse(204)

    async def delete_many(self, call: Call) -> HttpResponse:
        """DeleteObjects: keys outside of the prefix are refused one by one."""
        sink_body = await receive_xml(call)
        rows = parse_rows(sink_body, "Object")
        if not rows or len(rows) > MAX_DELETE:
            raise S3Error("MalformedXML", f"1 to {MAX_DELETE} objects can be named")
        keys = [row.get("Key", "") for row in rows]
        allowed = [key for key in keys if call.credential.may(key)]
        for key in allowed:
            check_key(key)
        await call.connection.run(self._files.delete, allowed)
        quiet = b"<Quiet>true</Quiet>" in sink_body
        done: list[tuple[str, Value]] = [
            ("Deleted", [("Key", key)]) for key in allowed if not quiet
        ]
        error = denied()
        refused: list[tuple[str, Value]] = [
            ("Error", [("Key", key), ("Code", error.code), ("Message", error.text)])
            for key in keys
            if not call.credential.may(key)
        ]
        return xml_response(render("DeleteResult", [*done, *refused]))

    def _publish(self, spool: Spool, info: ObjectInfo, key: str, only_new: bool) -> None:
        spool.seal(info)
        self._files.publish(spool, key, only_new=only_new)

    def _get(self, call: Call, wanted: str) -> HttpResponse:
        opened = self._files.open(call.key)
        keep = False
        try:
            response = self._answer(call, opened, wanted)
            keep = isinstance(response.body, FileBody)
            return response
        finally:
            if not keep:
                os.close(opened.descriptor)

    def _answer(self, call: Call, opened: OpenObject, wanted: str) -> HttpResponse:
        info = opened.info
        headers = _headers(info)
        if _not_modified(call.http.headers, info):
            return HttpResponse(304, headers)
        start, size = 0, info.size
        status = 200
        span = _span(wanted, info.size)
        if span is not None:
            start, size = span
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{start + size - 1}/{info.size}"))
        if call.http.method == "HEAD":
            return HttpResponse(status, headers, length=size)
        if size <= SMALL:
            body = os.pread(opened.descriptor, size, start)
            if len(body) != size:
                raise OSError("the file is shorter than it says")
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
        headers = kept_headers(call.http.headers) if replace else None
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
            kept = opened.info.headers if headers is None else headers
            info = ObjectInfo(spool.size, opened.info.etag, time.time(), kept)
            self._publish(spool, info, target, False)
            return info
        finally:
            os.close(opened.descriptor)
            if spool is not None:
                spool.discard()


async def receive_body(call: Call, files: ObjectFiles) -> tuple[Spool, str]:
    """Receives a body into a new file, checked but not sealed; the file and its ETag.

    Raises S3Error, OSError; then nothing is left.
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
    """A small body, checked like an object's. Raises S3Error."""
    if call.http.length is None:
        raise S3Error("MissingContentLength", "send Content-Length")
    found = bytearray()
    sink = PayloadSink(found.extend, call.verified, call.http.headers)
    sink.feed(memoryview(await call.connection.read(MAX_XML)))
    sink.finish()
    return bytes(found)


def xml_response(body: bytes) -> HttpResponse:
    """An answer with an XML body."""
    return HttpResponse(200, [("Content-Type", "application/xml")], body)


def kept_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers of an upload that come back with the object. Raises S3Error when too many."""
    kept = {
        name: value
        for name, value in headers.items()
        if name in _KEPT or name.startswith("x-amz-meta-")
    }
    encoding = kept.get("content-encoding", "")
    if "aws-chunked" in encoding:
        rest = [part.strip() for part in encoding.split(",") if part.strip() != "aws-chunked"]
        kept["content-encoding"] = ",".join(rest)
        if not rest:
            del kept["content-encoding"]
    if sum(len(name) + len(value) for name, value in kept.items()) > MAX_HEADERS:
        raise S3Error("InvalidRequest", f"headers of an object are at most {MAX_HEADERS} bytes")
    return kept


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
        raise S3Error("NotImplemented", "of the conditions only If-None-Match: * is offered")
    return condition == "*"


def _not_modified(headers: dict[str, str], info: ObjectInfo) -> bool:
    """Whether a reader has it already. Raises S3Error PreconditionFailed."""
    tags = [tag.strip().strip('"') for tag in headers.get("if-match", "").split(",")]
    if "if-match" in headers and not {"*", info.etag} & set(tags):
        raise S3Error("PreconditionFailed", "If-Match does not hold")
    tags = [tag.strip().strip('"') for tag in headers.get("if-none-match", "").split(",")]
    if "if-none-match" in headers:
        return bool({"*", info.etag} & set(tags))
    since = _date(headers.get("if-modified-since"))
    if since is not None:
        return int(info.modified) <= since
    until = _date(headers.get("if-unmodified-since"))
    if until is not None and "if-match" not in headers and int(info.modified) > until:
        raise S3Error("PreconditionFailed", "If-Unmodified-Since does not hold")
    return False


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """(start, length) of a Range header; None for the whole object. Raises S3Error."""
    match = _RANGE.fullmatch(wanted.replace(" ", ""))
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
        raise S3Error("InvalidRange", "the range starts behind the end")
    return start, length
