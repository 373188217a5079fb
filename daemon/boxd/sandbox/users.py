"""The users of the service's own processes: ids of the host that nothing else uses.

They need no entry in /etc/passwd. An installation claims one block of ids and records it, so files
keep their owners. If another installation has the block after a reboot, `hand_over` gives the files
to the new users.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST, IdClaims, record, recorded

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 65_536
"""Ids in a block."""
BLOCKS = 256
"""Blocks below the ids of boxes."""
RENDERER = 1
"""The number of the user that renders documents."""
OBJECT_SERVER = 2
"""The number of the object server's user in the block."""
FRONT = 3
"""The number of the user of the part of the service that strangers reach."""
POSTGRES = 4
"""The number of the user of the embedded PostgreSQL."""
FIRST_MOUNT = 1000
"""The number of the first user of a mount process."""


class ServiceUsers:
    """The users of one installation. `setup` comes first. All calls block for a short time."""

    def __init__(self, instance: str, state: Path, claims: IdClaims | None = None) -> None:
        self._instance = instance
        self._record = state / "user-ids"
        self._claims = IdClaims(instance) if claims is None else claims
        self._first = 0

    def setup(self) -> None:
        """Claim the recorded block, or another one. Raises Unavailable if none is left."""
        begin = int(self._instance, 16)
        others = ((begin + number) % BLOCKS for number in range(BLOCKS))
        with self._claims.locked():
            for block in [*recorded(self._record)[:1], *others]:
                first = FIRST - (block + 1) * SIZE
                if block < BLOCKS and self._claims.claim(f"service-{block}", first, SIZE):
                    self._first = first
                    record(self._record, [block])
                    return
        raise Unavailable(
            "no user ids are left for the service: /etc/subuid, /etc/subgid or other installations "
            f"use all ids from {FIRST - BLOCKS * SIZE} to {FIRST - 1}; change those files"
        )

    def of(self, number: int) -> int:
        """Return the id of a user, 0 to 65,535, of the block."""
        if not self._first or not 0 <= number < SIZE:
            raise ValueError(f"no user {number}")
        return self._first + number


def hand_over(directory: Path, user: int, group: int | None = None) -> None:
    """Create a directory for a user, or give an existing one and its content to the user.

    Does nothing if the user owns the directory already. An earlier owner may have been hostile:
    links are not followed, and files with more than one name are deleted. Raises OSError.
    """
    group = user if group is None else group
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(top)
        if (status.st_uid, status.st_gid) == (user, group):
            return
        for _path, _directories, names, descriptor in os.fwalk(".", dir_fd=top):
            for name in names:
                _give(name, descriptor, user, group)
            if descriptor != top:
                os.fchown(descriptor, user, group)
        os.fchown(top, user, group)  # last: an interrupted call begins again
    finally:
        os.close(top)


def _give(name: str, directory: int, user: int, group: int) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        os.chown(name, user, group, dir_fd=directory, follow_symlinks=False)
    else:
        os.unlink(name, dir_fd=directory)
