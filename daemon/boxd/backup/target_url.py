"""Opens a target by its path or s3:// URL. A file holds the credential for S3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backup.target import SCHEME, DirectoryTarget
from boxd.errors import BadRequest
from boxd.workspaces.credentials import ExternalStore

if TYPE_CHECKING:
    from boxd.backup.target import Target


def open_target(url: str, store_file: Path | None) -> Target:
    """Return the target at a path or URL.

    Raises BadRequest for an unsupported URL, and Unavailable if the credential file is wrong.
    """
    if url.startswith(SCHEME):
        if store_file is None:
            raise BadRequest(
                f"{url} needs --backup-store-file FILE: JSON (mode 0600) with endpoint, bucket, "
                "region and admin credential, as for --store-file"
            )
        # The import of the S3 client is slow (see CONTRIBUTING), so only its users pay for it.
        from boxd.backup.s3 import S3Target

        return S3Target(url, ExternalStore.from_file(store_file))
    if "://" in url:
        raise BadRequest(f"{url}: backups go to a directory or to s3://BUCKET/PREFIX")
    return DirectoryTarget(Path(url))
