"""A target by its name: a path, or an s3:// URL with a file that has the credential."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backup.target import SCHEME, DirectoryTarget
from boxd.errors import BadRequest
from boxd.workspaces.credentials import ExternalStore

if TYPE_CHECKING:
    from boxd.backup.target import Target


def open_target(url: str, store_file: Path | None) -> Target:
    """The target of a path or URL. BadRequest; Unavailable names what is wrong with the file."""
    if url.startswith(SCHEME):
        if store_file is None:
            raise BadRequest(
                f"{url} needs --backup-store-file FILE: JSON (mode 0600) with endpoint, bucket, "
                "region and admin credential, as for --store-file"
            )
        # Its client takes long to load (see CONTRIBUTING): only who uses it waits for that.
        from boxd.backup.s3 import S3Target

        return S3Target(url, ExternalStore.from_file(store_file))
    if "://" in url:
        raise BadRequest(f"{url}: backups go to a directory or to s3://BUCKET/PREFIX")
    return DirectoryTarget(Path(url))
