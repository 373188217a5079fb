"""Multipart uploads on the disk: one directory each, its key in a file, its parts as files.

Blocking; called from threads. The upload's number is random, and it is only found together with
the key that it was begun for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.embedded.files import sync_directory, write_private
from boxd.embedded.objectfiles import NoSuchObject, ObjectInfo, open_file, read_info
from boxd.embedded.objectserver.errors import S3Error
from boxd.secret import random_hex

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.embedded.objectfiles import ObjectFiles, Spool

MAX_PARTS = 10_000
MIN_PART = 5 * 1024 * 1024
"""Smallest part but the last, bytes."""
MAX_OPEN = 1_000
"""Unfinished uploads of one credential's prefix."""
_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished upload. `headers` are kept for the object."""

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
        """Makes the directory."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self._directory.parent)

    def create(self, key: str, prefix: str, headers: dict[str, str]) -> Upload:
        """Begins an upload. Raises S3Error SlowDown at the limit of unfinished ones, OSError."""
        if len(self.rows(prefix)) >= MAX_OPEN:
            raise S3Error("SlowDown", f"{MAX_OPEN} uploads are unfinished; end some first")
        upload = Upload(random_hex(16), key, time.time(), headers)
        directory = self._directory / upload.id
        directory.mkdir(mode=0o700)
        text = json.dumps({"key": key, "started": upload.started, "headers": headers})
        write_private(directory / "upload", text.encode("utf-8"))
        sync_directory(self._directory)
        return upload

    def find(self, upload_id: str, key: str) -> Upload:
        """The upload begun for `key`. Raises S3Error NoSuchUpload."""
        upload = self._read(upload_id) if _ID.fullmatch(upload_id) else None
        if upload is None or upload.key != key:
            raise S3Error("NoSuchUpload", "there is no such upload")
        return upload

    def rows(self, prefix: str) -> list[Upload]:
        """Unfinished uploads of keys that start with `prefix`, by key."""
        found = [self._read(entry.name) for entry in self._directory.iterdir()]
        wanted = [upload for upload in found if upload and upload.key.startswith(prefix)]
        return sorted(wanted, key=lambda upload: (upload.key.encode("utf-8"), upload.started))

    def put_part(self, upload: Upload, number: int, spool: Spool) -> None:
        """Keeps a sealed file as a part, durably. Raises S3Error NoSuchUpload, OSError."""
        directory = self._directory / upload.id
        try:
            spool.path.rename(directory / f"{number:05d}")
            sync_directory(directory)
        except FileNotFoundError:
            raise S3Error("NoSuchUpload", "the upload has been ended") from None

    def parts(self, upload: Upload) -> list[tuple[int, ObjectInfo]]:
        """(number, info) of the parts so far, in order."""
        directory = self._directory / upload.id
        numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
        return [(number, read_info(directory / f"{number:05d}")) for number in numbers]

    def complete(self, upload: Upload, wanted: list[tuple[int, str]]) -> str:
        """Joins the named parts (number, ETag) to the object, durably; the ETag.

        Raises S3Error InvalidPart, InvalidPartOrder, EntityTooSmall; OSError.
        """
        numbers = [number for number, _ in wanted]
        if not numbers or numbers != sorted(set(numbers)):
            raise S3Error("InvalidPartOrder", "parts must be named once, in order")
        joined = hashlib.sha256()
        spool = self._files.spool()
        try:
            for index, (number, etag) in enumerate(wanted):
                is_last = index == len(wanted) - 1
                self._append(upload, number, etag, spool, is_last=is_last)
                joined.update(etag.encode("utf-8"))
            etag = f"{joined.hexdigest()[:32]}-{len(wanted)}"
            spool.seal(ObjectInfo(spool.size, etag, time.time(), upload.headers))
            self._files.publish(spool, upload.key)
        finally:
            spool.discard()
        self.abort(upload)
        return etag

    def abort(self, upload: Upload) -> None:
        """Forgets an upload and its parts."""
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
