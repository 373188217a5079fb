"""Creates the places in a box's root at which a restore mounts something.

runc creates them when it starts a box, as root of the box. Before a restore it creates them as root
of the host, which has no id in a root with mapped ids. Some of them exist only on file systems that
CRIU mounts later: /sys/firmware, for example.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create(root: Path, config: dict[str, Any]) -> None:
    """Create the destinations of a configuration's mounts that are missing in a root.

    The content of the root is untrusted, so no link is followed. A destination behind a link or a
    file stays as it is; then runc reports it. Raises OSError if the disk is full.
    """
    for mount in config["mounts"]:
        is_file = mount["type"] == "bind" and not Path(mount["source"]).is_dir()
        parts = mount["destination"].strip("/").split("/")
        with suppress(NotADirectoryError):
            _create(root, parts, is_file=is_file)


def _create(root: Path, parts: list[str], *, is_file: bool) -> None:
    *above, last = parts
    with ExitStack() as stack:

        def enter(place: str | Path, directory: int | None = None) -> int:
            descriptor = os.open(place, _DIRECTORY, dir_fd=directory)
            stack.callback(os.close, descriptor)
            return descriptor

        here = enter(root)
        for part in above:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
            here = enter(part, here)
        with suppress(FileExistsError):
            if is_file:
                os.close(os.open(last, _NEW_FILE, 0o755, dir_fd=here))
            else:
                os.mkdir(last, 0o755, dir_fd=here)
