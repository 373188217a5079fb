"""Drives that boxes mount themselves: the daemon's part.

A box with a drive has a grant: a token for the metadata database, and its own credential for the
objects of the volume. The daemon sends both through the tunnel, and stores them encrypted below the
state directory for the next daemon. The grant ends when the drive is detached or the box stops.

Critical sections: the lifecycle calls `attach`, `detach`, `leave` and `forget` of a box under the
lock of that box. `_grants`, `_gateways` and `_used` change between awaits only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from box_guest import protocol
from boxd.embedded.files import write_private
from boxd.errors import BoxdError, Conflict, Unavailable
from boxd.secret import Secret, random_hex
from boxd.tasks import BackgroundTasks
from boxd.workspaces.gateway import Gateway

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel
    from boxd.workspaces.credentials import CredentialIssuer
    from boxd.workspaces.host_drives import DriveKey
    from boxd.workspaces.seal import Sealer
    from wrkfs.config import VolumeConfig

ASK_S = 55.0
"""Seconds for an agent to mount or unmount. The agent gives its mount process less."""
LEAVE_S = 30.0
"""The same limit for a box that is about to end."""
INFO_S = 10.0
UNSET = "agent"
"""Placeholder for the address of the object store, which only the agent knows."""

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds and creates volumes; `boxd.workspaces.volumes` implements it."""

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Return the volume of a workspace; create it if needed."""
        ...

    async def all(self) -> list[VolumeConfig]:
        """Return every volume of the installation."""
        ...


class Tunnels(Protocol):
    """Connections of the agents; `boxd.tunnel.registry` implements it."""

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Wait for the tunnel of a box. Raises Unavailable."""
        ...

    def peek(self, box_id: str) -> Tunnel | None:
        """Return the tunnel of a box, if it is up."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """The access of one box to one volume."""

    volume: str
    access_key: str
    token: Secret = field(repr=False)
    secret: Secret = field(repr=False)

    def dump(self) -> str:
        """Return the grant as JSON, with its secrets."""
        return json.dumps([self.volume, self.access_key, self.token.reveal(), self.secret.reveal()])

    @classmethod
    def load(cls, text: str) -> Grant:
        """Return the grant in a text of `dump`."""
        volume, access_key, token, secret = json.loads(text)
        return cls(volume, access_key, Secret(token), Secret(secret))


class BoxDrives:
    """Lets boxes mount their drives: a `DriveAttacher` of `boxd.boxes.state.interface`."""

    def __init__(
        self,
        volumes: Volumes,
        tunnels: Tunnels,
        issuer: CredentialIssuer,
        sealer: Sealer,
        directory: Path,
        *,
        shared_key: str = "",
    ) -> None:
        """`directory` stores the grants.

        `shared_key` is an access key for several volumes. No box receives it.
        """
        self._volumes = volumes
        self._tunnels = tunnels
        self._issuer = issuer
        self._sealer = sealer
        self._directory = directory
        self._shared_key = shared_key
        self._grants: dict[str, Grant] = {}
        self._gateways: dict[str, Gateway] = {}
        self._used: set[str] = set()
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        """Load the grants of an earlier daemon, and revoke credentials without a grant."""
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._directory.iterdir()):
            try:
                text = self._sealer.unseal(path.name, path.read_bytes())
                self._grants[path.name] = Grant.load(text)
            except (Unavailable, ValueError) as error:
                _log.warning("a box's grant is lost: %s", error, extra={"box": path.name})
                path.unlink()
        volumes = await self._volumes.all()
        used_keys = {volume.store.access_key for volume in volumes}
        used_keys |= {grant.access_key for grant in self._grants.values()}
        prefixes = {f"{volume.store.prefix}/" for volume in volumes}
        for access_key, prefix in await self._issuer.credentials():
            if prefix in prefixes and access_key not in used_keys:
                await self._issuer.revoke(access_key)

    def workspace_of(self, volume_id: str) -> DriveKey | None:
        """Return None, because boxes do not use mounts of the host."""
        del volume_id
        return None

    def tunnel_up(self, tunnel: Tunnel) -> None:
        """Open the gateway of a box, if it has one, in its new tunnel."""
        gateway = self._gateways.get(tunnel.box_id)
        if gateway is None:
            return

        async def offer() -> None:
            try:
                await gateway.offer(tunnel)
            except BoxdError as error:
                _log.warning("drive not reachable: %s", error, extra={"box": tunnel.box_id})

        self._tasks.start(offer(), name=f"drive of box {tunnel.box_id}")

    async def prepare(self, owner: str, workspace: str | None) -> None:
        """Create the volume, so that `attach` is quick."""
        await self._volumes.ensure(owner, workspace)

    async def attach(self, box: Box) -> None:
        """Let the box mount its drive, unless it is mounted already.

        Raises Unavailable with the reason of a failure. A failure does not leave a new grant.
        """
        self._used.add(box.id)
        volume = await self._volumes.ensure(box.owner, box.workspace)
        has_grant = box.id in self._grants
        try:
            grant = await self._ensure_grant(box, volume)
            gateway = self._gateways.get(box.id)
            if gateway is None:
                gateway = self._gateways[box.id] = Gateway(box.id, volume, grant.token)
            tunnel = await self._tunnels.get(box.id)
            await gateway.offer(tunnel)
            credentials = _credentials(volume, grant, gateway.database)
            state = await self._ask(
                tunnel, protocol.DRIVE_MOUNT, ASK_S, credentials=json.loads(credentials.to_json())
            )
            if not state["mounted"]:
                raise Unavailable(f"the box does not mount its drive: {state['error']}")
        except BaseException:
            if not has_grant:
                await self.forget(box)
            raise

    def use(self, box: Box) -> None:
        """Do nothing: a box that mounts its drive itself is never resumed from memory with it."""
        del box

    async def detach(self, box: Box) -> None:
        """Detach /wrk. Raises Conflict with the processes that use it."""
        tunnel = await self._tunnels.get(box.id)
        state = await self._ask(tunnel, protocol.DRIVE_UMOUNT, ASK_S, force=False)
        if state["holders"]:
            holders = ", ".join(state["holders"])
            raise Conflict(f"{protocol.DRIVE_DIR} is in use by {holders}; cd elsewhere first")
        if state["mounted"] or state["error"]:
            raise Unavailable(f"the box cannot unmount its drive: {state['error']}")
        await self.forget(box)

    async def leave(self, box: Box) -> None:
        """Commit all writes of the box's mount before the box ends."""
        tunnel = self._tunnels.peek(box.id)
        if box.id not in self._gateways or tunnel is None:
            return
        try:
            await self._ask(tunnel, protocol.DRIVE_UMOUNT, LEAVE_S, force=True)
        except BoxdError as error:
            _log.warning("the drive was not unmounted cleanly: %s", error, extra={"box": box.id})

    async def forget(self, box: Box) -> None:
        """End the grant of the box, if it has one, with all its connections."""
        await self._end(box.id)

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """Do nothing: the host has no mounts of volumes, and those in boxes end with the boxes."""
        del owner, workspace, volume_id

    async def release_unused(self, wanted: set[DriveKey]) -> None:
        """End the grants of boxes that are not running. Call it after adoption."""
        del wanted
        for box_id in list(self._grants):
            if box_id not in self._used:
                await self._end(box_id)

    async def info(self, box: Box) -> dict[str, object]:
        """Return the facts that `box-guest workspace info` shows."""
        facts: dict[str, object] = {
            "mounted": False,
            "path": str(protocol.DRIVE_DIR),
            "workspace": box.workspace or "(default)",
            "mount": "by the box itself",
        }
        tunnel = self._tunnels.peek(box.id)
        if box.id not in self._gateways or tunnel is None:
            return facts
        state = await self._ask(tunnel, protocol.DRIVE_INFO, INFO_S)
        facts |= {"mounted": state["mounted"], "restarts": state["restarts"]}
        if state["error"]:
            facts["error"] = state["error"]
        # The health comes from the box, so it must not override the daemon's own facts.
        return {**state["health"], **facts}

    async def close(self) -> None:
        """Close the gateways. The grants stay for the next daemon."""
        await self._tasks.close()
        for gateway in list(self._gateways.values()):
            await gateway.close()
        self._gateways.clear()

    async def _ensure_grant(self, box: Box, volume: VolumeConfig) -> Grant:
        """Return the grant of the box; create and store it if needed. Raises Unavailable."""
        grant = self._grants.get(box.id)
        if grant is not None and grant.volume == volume.volume:
            return grant
        access_key, secret = await self._issuer.issue(volume.store.prefix)
        if access_key == self._shared_key:
            raise Unavailable(
                "the credential of the object store opens all drives, so no box may have it: list "
                "`volumes` with their own credentials in the --store-file"
            )
        grant = Grant(volume.volume, access_key, Secret(random_hex(32)), secret)
        self._grants[box.id] = grant
        sealed = self._sealer.seal(box.id, grant.dump())
        await asyncio.to_thread(write_private, self._directory / box.id, sealed)
        return grant

    async def _end(self, box_id: str) -> None:
        self._used.discard(box_id)
        gateway = self._gateways.pop(box_id, None)
        if gateway is not None:
            await gateway.close()
        grant = self._grants.get(box_id)
        if grant is None:
            return
        try:
            await self._issuer.revoke(grant.access_key)
        except BoxdError as error:
            # The file of the grant stays, so the next daemon tries again.
            _log.warning("credential not revoked: %s", error, extra={"box": box_id})
            return
        self._grants.pop(box_id, None)
        await asyncio.to_thread((self._directory / box_id).unlink, missing_ok=True)

    async def _ask(
        self, tunnel: Tunnel, kind: str, timeout: float, **fields: object
    ) -> dict[str, Any]:
        """Ask the agent; return its checked answer. Raises Unavailable."""
        try:
            async with asyncio.timeout(timeout):
                return protocol.drive_state(await tunnel.ask(kind, **fields))
        except TimeoutError:
            raise Unavailable(f"the box's agent did not answer within {timeout:.0f} s") from None
        except protocol.ProtocolError as error:
            raise Unavailable(f"the box's agent: {error}") from None


def _credentials(volume: VolumeConfig, grant: Grant, database: str) -> VolumeConfig:
    """Return the configuration for the box: its own token and credential, and paths in the box."""
    query = urlencode({"host": str(protocol.GATE_DIR)})
    dsn = f"postgresql://{quote(volume.schema)}:{grant.token.reveal()}@/{quote(database)}?{query}"
    store = replace(
        volume.store,
        endpoint=UNSET,
        access_key=grant.access_key,
        secret_key=grant.secret.reveal(),
    )
    return replace(volume, meta_dsn=dsn, store=store)
