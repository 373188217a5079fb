"""Operations on the bucket: listings, and requests about the bucket itself."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from objectserver.errors import S3Error, denied
from objectserver.files import (
    DamagedObject,
    NoSuchObject,
    ObjectFiles,
    ObjectInfo,
    read_info,
)
from objectserver.http import HttpResponse
from objectserver.listing import Walk
from objectserver.objects import xml_response
from objectserver.xml import render, timestamp

if TYPE_CHECKING:
    from objectserver.service import Call
    from objectserver.xml import Value

MAX_KEYS = 1000
"""Maximum number of rows of one listing (S3's limit)."""


@dataclass(slots=True)
class Page:
    """One page of a listing; `last` is the position of the next page, empty at the end."""

    objects: list[tuple[str, ObjectInfo]]
    groups: list[str]
    last: str


class Bucket:
    """Answers listings and requests about the bucket. Stateless."""

    def __init__(self, files: ObjectFiles, *, bucket: str, region: str) -> None:
        self._files = files
        self._bucket = bucket
        self._region = region

    async def buckets(self, call: Call) -> HttpResponse:
        """ListBuckets: the one bucket, for the administrator only."""
        if not call.credential.is_admin:
            raise denied()
        row: list[tuple[str, Value]] = [("Name", self._bucket), ("CreationDate", timestamp(0))]
        children: list[tuple[str, Value]] = [
            ("Owner", [("ID", "boxd")]),
            ("Buckets", [("Bucket", row)]),
        ]
        return xml_response(render("ListAllMyBucketsResult", children))

    async def head(self, call: Call) -> HttpResponse:
        """HeadBucket: the bucket exists, for every credential."""
        return HttpResponse(200, [("x-amz-bucket-region", self._region)])

    async def location(self, call: Call) -> HttpResponse:
        """GetBucketLocation."""
        where = "" if self._region == "us-east-1" else self._region
        text = render("LocationConstraint", []).decode("ascii")
        return xml_response(text.replace("></", f">{where}</", 1).encode("ascii"))

    async def create(self, call: Call) -> HttpResponse:
        """CreateBucket: rejected, because the only bucket already exists."""
        if not call.credential.is_admin:
            raise denied()
        raise S3Error("BucketAlreadyOwnedByYou", "the bucket already exists")

    async def list(self, call: Call) -> HttpResponse:
        """ListObjectsV2 and ListObjects, restricted to the credential's prefix."""
        query = call.query
        prefix = query.get("prefix", "")
        if not call.credential.may(prefix):
            raise denied()
        version2 = query.get("list-type") == "2"
        limit = _number(query.get("max-keys", str(MAX_KEYS)), MAX_KEYS)
        token = query.get("continuation-token") if version2 else None
        after = query.get("start-after" if version2 else "marker", "")
        if token is not None:
            after = _token(token, prefix)
        delimiter = query.get("delimiter", "")
        page = await call.connection.run(self._page, prefix, delimiter, after, limit)
        encode = quote if query.get("encoding-type") == "url" else str
        children: list[tuple[str, Value]] = [
            ("Name", self._bucket),
            ("Prefix", encode(prefix)),
            ("MaxKeys", limit),
            ("IsTruncated", bool(page.last)),
        ]
        if delimiter:
            children.append(("Delimiter", encode(delimiter)))
        if encode is quote:
            children.append(("EncodingType", "url"))
        children += _position(query, page, version2=version2, after=after)
        for key, info in page.objects:
            children.append(
                (
                    "Contents",
                    [
                        ("Key", encode(key)),
                        ("LastModified", timestamp(info.modified)),
                        ("ETag", f'"{info.etag}"'),
                        ("Size", info.size),
                        ("StorageClass", "STANDARD"),
                    ],
                )
            )
        for group in page.groups:
            children.append(("CommonPrefixes", [("Prefix", encode(group))]))
        return xml_response(render("ListBucketResult", children))

    def _page(self, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        page = Page([], [], "")
        if limit == 0:
            return page
        start = prefix.encode("utf-8")
        cut = delimiter.encode("utf-8")
        walk = Walk(self._files.data, start, after.encode("utf-8"))
        if cut and after and after.endswith(delimiter):
            walk.skip(after.encode("utf-8"))
        last = ""
        for raw, path in walk:
            at = raw.find(cut, len(start)) if cut else -1
            if len(page.objects) + len(page.groups) == limit:
                page.last = last
                break
            if at >= 0:
                group = raw[: at + len(cut)]
                walk.skip(group)
                last = group.decode("utf-8")
                page.groups.append(last)
                continue
            try:
                info = read_info(path)
            except NoSuchObject:
                continue  # the object was removed after the directory was read
            except DamagedObject:
                # List damaged objects, so that they can be found and deleted.
                info = ObjectInfo(0, "damaged", 0.0)
            last = raw.decode("utf-8")
            page.objects.append((last, info))
        return page


def _position(
    query: dict[str, str], page: Page, *, version2: bool, after: str
) -> list[tuple[str, Value]]:
    """Return the fields with the start of a page and the position of the next one."""
    fields: list[tuple[str, Value]] = []
    encode = quote if query.get("encoding-type") == "url" else str
    if version2:
        fields.append(("KeyCount", len(page.objects) + len(page.groups)))
        for parameter, name in (
            ("continuation-token", "ContinuationToken"),
            ("start-after", "StartAfter"),
        ):
            if parameter in query:
                fields.append((name, query[parameter]))
        if page.last:
            token = base64.urlsafe_b64encode(page.last.encode("utf-8")).decode("ascii")
            fields.append(("NextContinuationToken", token))
    else:
        fields.append(("Marker", encode(after)))
        if page.last:
            fields.append(("NextMarker", encode(page.last)))
    return fields


def _token(token: str, prefix: str) -> str:
    try:
        after = base64.urlsafe_b64decode(token.encode("ascii")).decode("utf-8")
    except (binascii.Error, ValueError):
        raise S3Error("InvalidArgument", "the continuation token is malformed") from None
    if not after.startswith(prefix):
        raise S3Error("InvalidArgument", "the continuation token belongs to another listing")
    return after


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise S3Error("InvalidArgument", "max-keys is not a number")
    return min(int(text), most)
