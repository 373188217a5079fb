"""Archives in an S3 bucket below a prefix: `s3://BUCKET/PREFIX`.

Endpoint, region and credential come from a file like that of `--store-file`; the bucket is the
URL's. An object appears when its upload is complete, so there is nothing to rename.
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
"""Bytes above which an archive is sent in parts of that size."""
TIMEOUT = 60
"""Seconds that a request may stand still."""
READ = 1 << 20


class S3Target:
    """See the module. Each call makes its own connections; backups are rare."""

    def __init__(self, url: str, store: ExternalStore, *, part: int = PART) -> None:
        """Raises BadRequest for a URL without bucket. `part` 5 MiB or more."""
        split = urlsplit(url)
        if not split.netloc or split.query or split.fragment:
            raise BadRequest(f"{url} is not s3://BUCKET/PREFIX")
        self._bucket = split.netloc
        self._prefix = f"{path}/" if (path := split.path.strip("/")) else ""
        self._store = store
        self._part = part

    @property
    def url(self) -> str:
        """The URL; the credential is not in it."""
        return f"{SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    async def put(self, name: str, file: BinaryIO) -> None:
        """See Target. Compares the length that the store then tells."""
        size = os.fstat(file.fileno()).st_size
        where = {"Bucket": self._bucket, "Key": self._prefix + name}
        if size <= self._part:
            async with self._client("write to") as client:
                await client.put_object(**where, Body=file)
        else:
            await self._put_parts(where, file)
        async with self._client("look at") as client:
            found = await client.head_object(**where)
        if found["ContentLength"] != size:
            raise Unavailable(f"{self.url} kept {found['ContentLength']} of {size} bytes of {name}")

    async def _put_parts(self, where: dict[str, str], file: BinaryIO) -> None:
        """What fails is given up there, so that no part stays behind."""
        async with self._client("write to") as client:
            made = await client.create_multipart_upload(**where)
            upload = where | {"UploadId": made["UploadId"]}
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
        """See Target."""
        found: list[str] = []
        async with self._client("list") as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            async for page in pages:
                found += [
                    str(one["Key"]).removeprefix(self._prefix) for one in page.get("Contents", [])
                ]
        return archive_names(found)

    async def get(self, name: str, file: BinaryIO) -> None:
        """See Target."""
        async with self._client("read from", missing=f"there is no backup {self.url}/{name}") as s3:
            answer = await s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
            async for data in answer["Body"].iter_chunks(READ):
                file.write(data)

    async def remove(self, name: str) -> None:
        """See Target."""
        async with self._client("delete from") as client:
            await client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @asynccontextmanager
    async def _client(self, step: str, missing: str | None = None) -> AsyncIterator[Any]:
        """A client; what the store refuses within becomes Unavailable, `missing` NotFound."""
        options = AioConfig(
            connect_timeout=TIMEOUT,
            read_timeout=TIMEOUT,
            retries={"total_max_attempts": 4},
            signature_version="s3v4",
            # Lengths are compared and archives prove themselves; not every store knows checksums.
            request_checksum_calculation="when_required",
        )
        admin, place = self._store.admin, self._store.target
        try:
            async with aioboto3.Session().client(
                "s3",
                endpoint_url=place.endpoint,
                region_name=place.region,
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
