"""Operations of multipart uploads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from objectserver.errors import S3Error, denied
from objectserver.files import ObjectFiles, ObjectInfo
from objectserver.http import HttpResponse
from objectserver.objects import (
    receive_body,
    receive_xml,
    stored_headers,
    xml_response,
)
from objectserver.uploads import MAX_PARTS, Upload, Uploads
from objectserver.xml import parse_rows, render, timestamp

if TYPE_CHECKING:
    from objectserver.files import Spool
    from objectserver.service import Call
    from objectserver.xml import Value


class Multipart:
    """Handles the operations of multipart uploads.

    Stateless apart from the files; calls may interleave.
    """

    def __init__(self, files: ObjectFiles, uploads: Uploads, *, bucket: str) -> None:
        self._files = files
        self._uploads = uploads
        self._bucket = bucket

    async def create(self, call: Call) -> HttpResponse:
        """CreateMultipartUpload."""
        headers = stored_headers(call.http.headers)
        upload = await call.connection.run(
            self._uploads.create, call.key, call.credential.prefix, headers
        )
        return xml_response(
            render(
                "InitiateMultipartUploadResult",
                [("Bucket", self._bucket), ("Key", call.key), ("UploadId", upload.id)],
            )
        )

    async def put_part(self, call: Call) -> HttpResponse:
        """UploadPart."""
        if "x-amz-copy-source" in call.http.headers:
            raise denied()
        text = call.query.get("partnumber", "")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_PARTS):
            raise S3Error("InvalidArgument", f"partNumber must be 1 to {MAX_PARTS}")
        upload = await self._find(call)
        spool, etag = await receive_body(call, self._files)
        try:
            await call.connection.run(self._store, upload, int(text), spool, etag)
        finally:
            await call.connection.run(spool.discard)
        return HttpResponse(headers=[("ETag", f'"{etag}"')])

    async def complete(self, call: Call) -> HttpResponse:
        """CompleteMultipartUpload."""
        upload = await self._find(call)
        rows = parse_rows(await receive_xml(call), "Part")
        parts: list[tuple[int, str]] = []
        for row in rows:
            number = row.get("PartNumber", "").strip()
            if not (number.isascii() and number.isdigit() and len(number) < 6):
                raise S3Error("MalformedXML", "PartNumber is not a number")
            parts.append((int(number), row.get("ETag", "").strip().strip('"')))
        etag = await call.connection.run(self._uploads.complete, upload, parts)
        return xml_response(
            render(
                "CompleteMultipartUploadResult",
                [("Bucket", self._bucket), ("Key", call.key), ("ETag", f'"{etag}"')],
            )
        )

    async def abort(self, call: Call) -> HttpResponse:
        """AbortMultipartUpload."""
        upload = await self._find(call)
        await call.connection.run(self._uploads.abort, upload)
        return HttpResponse(204)

    async def parts(self, call: Call) -> HttpResponse:
        """ListParts, all in one page."""
        upload = await self._find(call)
        parts = await call.connection.run(self._uploads.parts, upload)
        rows: list[tuple[str, Value]] = [
            (
                "Part",
                [
                    ("PartNumber", number),
                    ("ETag", f'"{info.etag}"'),
                    ("Size", info.size),
                    ("LastModified", timestamp(info.modified)),
                ],
            )
            for number, info in parts
        ]
        return xml_response(
            render(
                "ListPartsResult",
                [
                    ("Bucket", self._bucket),
                    ("Key", call.key),
                    ("UploadId", upload.id),
                    ("IsTruncated", False),
                    *rows,
                ],
            )
        )

    async def uploads(self, call: Call) -> HttpResponse:
        """ListMultipartUploads below the given prefix, which must be below the credential's."""
        prefix = call.query.get("prefix", "")
        if not call.credential.may(prefix):
            raise denied()
        uploads = await call.connection.run(self._uploads.rows, prefix)
        rows: list[tuple[str, Value]] = [
            (
                "Upload",
                [
                    ("Key", upload.key),
                    ("UploadId", upload.id),
                    ("Initiated", timestamp(upload.started)),
                ],
            )
            for upload in uploads
        ]
        return xml_response(
            render(
                "ListMultipartUploadsResult",
                [("Bucket", self._bucket), ("Prefix", prefix), ("IsTruncated", False), *rows],
            )
        )

    async def _find(self, call: Call) -> Upload:
        return await call.connection.run(self._uploads.find, call.query["uploadid"], call.key)

    def _store(self, upload: Upload, number: int, spool: Spool, etag: str) -> None:
        spool.seal(ObjectInfo(spool.size, etag, time.time()))
        self._uploads.put_part(upload, number, spool)
