"""What the other parts of the service ask of the part that needs root, `local`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from boxd.boxes.state.interface import RunDirectories

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection
    from pathlib import Path

    from boxd.backends.interface import Backend
    from boxd.workspaces.credentials import CredentialIssuer, StoreTarget
    from boxd.workspaces.host_drives import Mounts
    from boxd.workspaces.pool import Journals


INSTANCE = "instance"
"""A setting in the control database and a file in the state directory, with the same value.

A database and a state directory belong together if the values are equal.
"""
MountRestarted: TypeAlias = "Callable[[str], None]"
"""Called with the id of a volume whose mount crashed and runs again."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the database and the object store of the service are."""

    dsn: str = field(repr=False)
    """The control database, as a user with all rights."""
    objects: StoreTarget | None
    """The embedded object server; None with a store of the operator."""


class BoxDirectories(RunDirectories, Protocol):
    """Run directories of boxes, and the sockets of their tunnels."""

    async def bind(self, box_id: str) -> socket.socket:
        """Return the bound socket on which the box's agent dials. Raises OSError."""
        ...


class Host(Protocol):
    """Everything that needs root. Call `start_servers`, then `start_boxes`, and `stop` last."""

    @property
    def backend(self) -> Backend:
        """The boxes. Valid after `start_boxes`."""
        ...

    @property
    def mounts(self) -> Mounts:
        """The mounts of drives. Valid after `start_boxes`."""
        ...

    @property
    def directories(self) -> BoxDirectories:
        """The run directories of boxes."""
        ...

    @property
    def journals(self) -> Journals:
        """The journals of mounts."""
        ...

    @property
    def issuer(self) -> CredentialIssuer:
        """Credentials of the embedded object server, after `start_servers`."""
        ...

    @property
    def runtime(self) -> Path:
        """The guest runtime. Valid after `start_boxes`."""
        ...

    def on_mount_restarted(self, callback: MountRestarted) -> None:
        """Call `callback` from now on when a mount crashed and runs again."""
        ...

    async def start_servers(self) -> Servers:
        """Start PostgreSQL and the object server, unless the operator has others.

        Raises Unavailable with a remedy.
        """
        ...

    async def start_boxes(self, existing: Collection[str]) -> None:
        """Prepare the host for boxes; adopt boxes and mounts that run.

        `existing` are the backends of existing boxes. Raises Unavailable with a remedy.
        """
        ...

    async def identity(self) -> str:
        """Return the identity in the state directory, which its database has too; "" if new."""
        ...

    async def set_identity(self, value: str) -> None:
        """Record the identity of a new installation, 32 hexadecimal digits."""
        ...

    async def admin_keys(self) -> bytes:
        """Return the content of the file of `--admin-keys`; empty without one.

        Raises BadRequest if the file cannot be used.
        """
        ...

    async def sanitise(self, document: int, output: int) -> int:
        """Run the program that sanitises documents: see `boxd.rendering.program.run`."""
        ...

    async def stop(self, *, everything: bool) -> None:
        """Stop what was started, also after a failed start.

        Boxes and mounts keep running, except with `everything`. Idempotent.
        """
        ...
