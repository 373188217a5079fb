"""Multipart uploads on the disk: one directory each, with its key in a file, and its parts as
files.

Blocking; threads call it. An upload's id is random; a request must also give the key for which the
upload was started.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objectserver.durable import sync_directory, write_private
from objectserver.errors import S3Error
from objectserver.files import NoSuchObject, ObjectInfo, open_file, read_info

if TYPE_CHECKING:
    from pathlib import Path

    from objectserver.files import ObjectFiles, Spool

MAX_PARTS = 10_000
"""Largest part number (S3's limit)."""
MIN_PART = 5 * 1024 * 1024
"""Smallest part except the last, in bytes."""
MAX_OPEN = 1_000
"""Maximum number of unfinished uploads per credential's prefix."""
_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished upload.

    `headers` will be stored with the object; `started` is in seconds since the epoch.
    """

    id: str
    key: str
    started: float
    headers: dict[str, str]


class Uploads:
    """All unfinished uploads below `directory`."""

    def __init__(self, directory: Path, files: ObjectFiles) -> None:
        self._directory = directory
        self._files = files

    def prepare(self) -> None:
        """Create the directory. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self._directory.parent)

    def create(self, key: str, prefix: str, headers: dict[str, str]) -> Upload:
        """Start an upload. Raises S3Error SlowDown if MAX_OPEN are unfinished, OSError."""
        if len(self.rows(prefix)) >= MAX_OPEN:
            raise S3Error(
                "SlowDown", f"{MAX_OPEN} uploads are unfinished; complete or abort some first"
            )
        upload = Upload(secrets.token_hex(16), key, time.time(), headers)
        directory = self._directory / upload.id
        directory.mkdir(mode=0o700)
        text = json.dumps({"key": key, "started": upload.started, "headers": headers})
        write_private(directory / "upload", text.encode("utf-8"))
        sync_directory(self._directory)
        return upload

    def find(self, upload_id: str, key: str) -> Upload:
        """Return the upload started for `key`. Raises S3Error NoSuchUpload."""
        upload = self._read(upload_id) if _ID.fullmatch(upload_id) else None
        if upload is None or upload.key != key:
            raise S3Error("NoSuchUpload", "the upload does not exist")
        return upload

    def rows(self, prefix: str) -> list[Upload]:
        """Return the unfinished uploads of keys that start with `prefix`, ordered by key."""
        uploads = [self._read(entry.name) for entry in self._directory.iterdir()]
        matching = [upload for upload in uploads if upload and upload.key.startswith(prefix)]
        return sorted(matching, key=lambda upload: (upload.key.encode("utf-8"), upload.started))

    def put_part(self, upload: Upload, number: int, spool: Spool) -> None:
        """Store a sealed file as a part, durably. Raises S3Error NoSuchUpload, OSError."""
        directory = self._directory / upload.id
        try:
            spool.path.rename(directory / f"{number:05d}")
            sync_directory(directory)
        except FileNotFoundError:
            raise S3Error("NoSuchUpload", "the upload has been completed or aborted") from None

    def parts(self, upload: Upload) -> list[tuple[int, ObjectInfo]]:
        """Return (number, info) of the stored parts, in order."""
        directory = self._directory / upload.id
        numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
        return [(number, read_info(directory / f"{number:05d}")) for number in numbers]

    def complete(self, upload: Upload, parts: list[tuple[int, str]]) -> str:
        """Join the given parts (number, ETag) into the object, durably, and return its ETag.

        Raises S3Error InvalidPart, InvalidPartOrder, EntityTooSmall; OSError.
        """
        numbers = [number for number, _ in parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise S3Error("InvalidPartOrder", "each part must be named once, in ascending order")
        etags = hashlib.sha256()
        spool = self._files.spool()
        try:
            for index, (number, etag) in enumerate(parts):
                is_last = index == len(parts) - 1
                self._append(upload, number, etag, spool, is_last=is_last)
                etags.update(etag.encode("utf-8"))
            etag = f"{etags.hexdigest()[:32]}-{len(parts)}"
            spool.seal(ObjectInfo(spool.size, etag, time.time(), upload.headers))
            self._files.publish(spool, upload.key)
        finally:
            spool.discard()
        self.abort(upload)
        return etag

    def abort(self, upload: Upload) -> None:
        """Delete an upload and its parts."""
        shutil.rmtree(self._directory / upload.id, ignore_errors=True)
        sync_directory(self._directory)

    def _append(
        self, upload: Upload, number: int, etag: str, spool: Spool, *, is_last: bool
    ) -> None:
        try:
            part = open_file(self._directory / upload.id / f"{number:05d}")
        except NoSuchObject:
            raise S3Error("InvalidPart", f"part {number} is missing") from None
        try:
            if part.info.etag != etag:
                raise S3Error("InvalidPart", f"part {number} has another ETag")
            if not is_last and part.info.size < MIN_PART:
                raise S3Error("EntityTooSmall", f"part {number} is shorter than {MIN_PART} bytes")
            spool.append_file(part.descriptor, part.info.size)
        finally:
            os.close(part.descriptor)

    def _read(self, upload_id: str) -> Upload | None:
        try:
            text = (self._directory / upload_id / "upload").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        raw = json.loads(text)
        return Upload(upload_id, raw["key"], raw["started"], raw["headers"])
