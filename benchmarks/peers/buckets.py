"""s3fs and rclone from Debian: file systems on a bucket, without a metadata server."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benchmarks.peers.mounted import Mounted, NotHere
from wrkfs.bench.workloads import REAL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wrkfs.config import StoreConfig

SKIPS = REAL | {"untar", "rm_rf", "git_clone_status", "pip_install"}
"""Works with thousands of files, which need several requests per file here."""


def _installed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise NotHere(f"{program} is not installed")
    return found


class S3fs(Mounted):
    """s3fs with its defaults. It checks the whole bucket at its start, so it gets access to it."""

    skips = SKIPS

    def __init__(self, store: StoreConfig, directory: Path) -> None:
        super().__init__(directory, "s3fs")
        self._program = _installed("s3fs")
        self._store = store
        self._passwords = directory / "s3fs.passwd"
        self._passwords.touch(mode=0o600)
        self._passwords.write_text(f"{store.access_key}:{store.secret_key}\n", encoding="utf-8")

    def command(self) -> Sequence[str]:
        """See Mounted."""
        store = self._store
        options = [f"passwd_file={self._passwords}", f"url={store.endpoint}"]
        options += ["use_path_request_style", "sigv4", f"endpoint={store.region}"]
        return [self._program, store.bucket, str(self.path), "-f", "-o", ",".join(options)]


class Rclone(Mounted):
    """rclone mount with a write cache, without which it cannot write in the middle of a file.

    It stores a file at close. fsync succeeds but stores nothing.
    """

    skips = SKIPS

    def __init__(self, store: StoreConfig, directory: Path) -> None:
        super().__init__(directory, "rclone")
        self._program = _installed("rclone")
        self._remote = f"bench:{store.bucket}/{store.prefix}"
        self._cache = directory / "rclone-cache"
        self._settings = directory / "rclone.conf"
        self._settings.touch(mode=0o600)
        lines = ["[bench]", "type = s3", "provider = Other", "force_path_style = true"]
        lines += [f"endpoint = {store.endpoint}", f"region = {store.region}"]
        lines += [f"access_key_id = {store.access_key}", f"secret_access_key = {store.secret_key}"]
        lines += ["no_check_bucket = true"]
        self._settings.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self) -> Sequence[str]:
        """See Mounted."""
        words = ["--config", str(self._settings), "--cache-dir", str(self._cache)]
        words += ["--vfs-cache-mode", "writes", "--vfs-write-back", "0s"]
        return [self._program, "mount", self._remote, str(self.path), *words]
