"""Operations of multipart uploads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from boxd.embedded.objectfiles import ObjectFiles, ObjectInfo
from boxd.embedded.objectserver.errors import S3Error, denied
from boxd.embedded.objectserver.http import HttpResponse
from boxd.embedded.objectserver.objects import (
    kept_headers,
    receive_body,
    receive_xml,
    xml_response,
)
from boxd.embedded.objectserver.uploads import MAX_PARTS, Upload, Uploads
from boxd.embedded.objectserver.xml import parse_rows, render, timestamp

if TYPE_CHECKING:
    from boxd.embedded.objectfiles import Spool
    from boxd.embedded.objectserver.service import Call
    from boxd.embedded.objectserver.xml import Value


class Multipart:
    """Stateless beside the files; any calls may interleave."""

    def __init__(self, files: ObjectFiles, uploads: Uploads, *, bucket: str) -> None:
        self._files = files
        self._uploads = uploads
        self._bucket = bucket

    async def create(self, call: Call) -> HttpResponse:
        """CreateMultipartUpload."""
        headers = kept_headers(call.http.headers)
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
            raise S3Error("InvalidArgument", f"partNumber is 1 to {MAX_PARTS}")
        upload = await self._find(call)
        spool, etag = await receive_body(call, self._files)
        try:
            await call.connection.run(self._keep, upload, int(text), spool, etag)
        finally:
            await call.connection.run(spool.discard)
        return HttpResponse(headers=[("ETag", f'"{etag}"')])

    async def complete(self, call: Call) -> HttpResponse:
        """CompleteMultipartUpload."""
        upload = await self._find(call)
        rows = parse_rows(await receive_xml(call), "Part")
        wanted: list[tuple[int, str]] = []
        for row in rows:
            number = row.get("PartNumber", "").strip()
            if not (number.isascii() and number.isdigit() and len(number) < 6):
                raise S3Error("MalformedXML", "PartNumber is not a number")
            wanted.append((int(number), row.get("ETag", "").strip().strip('"')))
        etag = await call.connection.run(self._uploads.complete, upload, wanted)
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
        found = await call.connection.run(self._uploads.parts, upload)
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
            for number, info in found
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
        """ListMultipartUploads below the asked prefix, which must be below the credential's."""
        prefix = call.query.get("prefix", "")
        if not call.credential.may(prefix):
            raise denied()
        found = await call.connection.run(self._uploads.rows, prefix)
        rows: list[tuple[str, Value]] = [
            (
                "Upload",
                [
                    ("Key", upload.key),
                    ("UploadId", upload.id),
                    ("Initiated", timestamp(upload.started)),
                ],
            )
            for upload in found
        ]
        return xml_response(
            render(
                "ListMultipartUploadsResult",
                [("Bucket", self._bucket), ("Prefix", prefix), ("IsTruncated", False), *rows],
            )
        )

    async def _find(self, call: Call) -> Upload:
        return await call.connection.run(self._uploads.find, call.query["uploadid"], call.key)

    def _keep(self, upload: Upload, number: int, spool: Spool, etag: str) -> None:
        spool.seal(ObjectInfo(spool.size, etag, time.time()))
        self._uploads.put_part(upload, number, spool)
