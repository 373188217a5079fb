"""Archives in an S3 bucket below a prefix: `s3://BUCKET/PREFIX`.

Endpoint, region and credential come from a file in the format of `--store-file`. The URL names the
bucket. An object appears only when its upload is complete, so no rename is needed.
"""

from __future__ import annotations

import io
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError

from boxd.backup.target import SCHEME, archive_names
from boxd.errors import BadRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.workspaces.credentials import ExternalStore

PART = 16 << 20
"""A larger archive is sent in parts of this size, in bytes."""
TIMEOUT = 60
"""Seconds without progress after which a request fails."""
READ = 1 << 20


class S3Target:
    """A target in a bucket. Each call opens its own connections, because backups are rare."""

    def __init__(self, url: str, store: ExternalStore, *, part: int = PART) -> None:
        """Raises BadRequest for a URL without a bucket. `part` must be at least 5 MiB."""
        split = urlsplit(url)
        if not split.netloc or split.query or split.fragment:
            raise BadRequest(f"{url} is not s3://BUCKET/PREFIX")
        self._bucket = split.netloc
        self._prefix = f"{path}/" if (path := split.path.strip("/")) else ""
        self._store = store
        self._part = part

    @property
    def url(self) -> str:
        """The URL, without the credential."""
        return f"{SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    async def put(self, name: str, file: BinaryIO) -> None:
        """Store an archive, and check the length that the store reports."""
        size = os.fstat(file.fileno()).st_size
        location = {"Bucket": self._bucket, "Key": self._prefix + name}
        if size <= self._part:
            async with self._client("write to") as client:
                await client.put_object(**location, Body=file)
        else:
            await self._put_parts(location, file)
        async with self._client("look at") as client:
            head = await client.head_object(**location)
        stored = head["ContentLength"]
        if stored != size:
            raise Unavailable(f"{self.url} stored {stored} of {size} bytes of {name}; try again")

    async def _put_parts(self, location: dict[str, str], file: BinaryIO) -> None:
        """Upload in parts. A failure aborts the upload, so that no part remains in the store."""
        async with self._client("write to") as client:
            answer = await client.create_multipart_upload(**location)
            upload = location | {"UploadId": answer["UploadId"]}
            parts: list[dict[str, object]] = []
            try:
                while data := file.read(self._part):
                    number = len(parts) + 1
                    body = io.BytesIO(data)
                    answer = await client.upload_part(**upload, PartNumber=number, Body=body)
                    parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                await client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            except BaseException:
                await client.abort_multipart_upload(**upload)
                raise

    async def names(self) -> list[str]:
        """List the archives, oldest first."""
        names: list[str] = []
        async with self._client("list") as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            async for page in pages:
                objects = page.get("Contents", [])
                names += [str(entry["Key"]).removeprefix(self._prefix) for entry in objects]
        return archive_names(names)

    async def get(self, name: str, file: BinaryIO) -> None:
        """Write an archive into `file`. Raises NotFound if it does not exist."""
        async with self._client("read from", missing=f"there is no backup {self.url}/{name}") as s3:
            answer = await s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
            async for data in answer["Body"].iter_chunks(READ):
                file.write(data)

    async def remove(self, name: str) -> None:
        """Remove an archive, if it exists."""
        async with self._client("delete from") as client:
            await client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @asynccontextmanager
    async def _client(self, step: str, missing: str | None = None) -> AsyncIterator[Any]:
        """Yield a client. Errors of the store become Unavailable.

        A missing object becomes NotFound with the text `missing`, if that is given.
        """
        options = AioConfig(
            connect_timeout=TIMEOUT,
            read_timeout=TIMEOUT,
            retries={"total_max_attempts": 4},
            signature_version="s3v4",
            # Not every store supports checksums. `put` compares lengths, and reading an archive
            # verifies its content.
            request_checksum_calculation="when_required",
        )
        admin, target = self._store.admin, self._store.target
        try:
            async with aioboto3.Session().client(
                "s3",
                endpoint_url=target.endpoint,
                region_name=target.region,
                aws_access_key_id=admin.access_key,
                aws_secret_access_key=admin.secret.reveal(),
                config=options,
            ) as client:
                yield client
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "unknown"))
            if code == "NoSuchKey" and missing is not None:
                raise NotFound(missing) from None
            raise self._failed(step, code) from None
        except (BotoCoreError, ValueError, OSError, TimeoutError) as error:
            raise self._failed(step, type(error).__name__) from error

    def _failed(self, step: str, reason: str) -> Unavailable:
        return Unavailable(f"cannot {step} {self.url} at {self._store.target.endpoint}: {reason}")
