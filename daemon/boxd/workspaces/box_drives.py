"""Drives that boxes mount themselves: what of them is the daemon's.

A box that has its drive is granted a token for the metadata database and a credential of its own
for the volume's objects. Both are sent through the tunnel, kept sealed below the state directory
for the next daemon, and end with the grant: when the drive is taken away, or the box stops.

Critical sections: the lifecycle calls `attach`, `detach`, `leave` and `forget` of one box under
that box's lock; `_grants`, `_gateways` and `_used` change between awaits only.
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
    from boxd.workspaces.host_drives import Workspace
    from boxd.workspaces.seal import Sealer
    from wrkfs.config import VolumeConfig

ASK_S = 55.0
"""Seconds for an agent to mount, or to take away; it gives its mount process less."""
LEAVE_S = 30.0
"""The same for a box that is about to end."""
INFO_S = 10.0
UNSET = "agent"
"""In the place of the object store's address, which only the agent knows."""

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds and makes volumes; see boxd.workspaces.volumes."""

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """The volume of a workspace, made when there is none."""
        ...

    async def all(self) -> list[VolumeConfig]:
        """Every volume of the installation."""
        ...


class Tunnels(Protocol):
    """Connections of the agents; see boxd.tunnel.registry."""

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """The box's tunnel, waited for; Unavailable."""
        ...

    def peek(self, box_id: str) -> Tunnel | None:
        """The box's tunnel, if it is up."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """What one box holds of one volume."""

    volume: str
    access_key: str
    token: Secret = field(repr=False)
    secret: Secret = field(repr=False)

    def dump(self) -> str:
        """As JSON. Contains secrets."""
        return json.dumps([self.volume, self.access_key, self.token.reveal(), self.secret.reveal()])

    @classmethod
    def load(cls, text: str) -> Grant:
        """Reads what `dump` wrote."""
        volume, access_key, token, secret = json.loads(text)
        return cls(volume, access_key, Secret(token), Secret(secret))


class BoxDrives:
    """See the module; it is what `boxes.interface.DriveAttacher` asks for."""

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
        """`directory` keeps the grants; `shared_key` is an access key that opens more than one
        volume, which no box gets."""
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
        """Takes over the grants of an earlier daemon, and ends credentials that belong to none."""
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._directory.iterdir()):
            try:
                text = self._sealer.unseal(path.name, path.read_bytes())
                self._grants[path.name] = Grant.load(text)
            except (Unavailable, ValueError) as error:
                _log.warning("a box's grant is lost: %s", error, extra={"box": path.name})
                path.unlink()
        volumes = await self._volumes.all()
        known = {volume.store.access_key for volume in volumes}
        known |= {grant.access_key for grant in self._grants.values()}
        prefixes = {f"{volume.store.prefix}/" for volume in volumes}
        for access_key, prefix in await self._issuer.credentials():
            if prefix in prefixes and access_key not in known:
                await self._issuer.revoke(access_key)

    def workspace_of(self, volume_id: str) -> Workspace | None:
        """None: no mount of the host is in a box."""
        del volume_id
        return None

    def tunnel_up(self, tunnel: Tunnel) -> None:
        """A box's tunnel is there: what its drive needs goes on through it."""
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
        """Has the volume made, so that `attach` is quick."""
        await self._volumes.ensure(owner, workspace)

    async def attach(self, box: Box) -> None:
        """Has the box mount its drive; one that is mounted goes on as it is.

        Unavailable tells why it cannot; the box has no grant then, unless it had one before.
        """
        self._used.add(box.id)
        volume = await self._volumes.ensure(box.owner, box.workspace)
        had = box.id in self._grants
        try:
            grant = await self._granted(box, volume)
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
            if not had:
                await self.forget(box)
            raise

    def use(self, box: Box) -> None:
        """No box runs on from its memory with a drive that it mounts itself."""
        del box

    async def detach(self, box: Box) -> None:
        """Takes /wrk away; Conflict naming the holders when it is in use."""
        tunnel = await self._tunnels.get(box.id)
        state = await self._ask(tunnel, protocol.DRIVE_UMOUNT, ASK_S, force=False)
        if state["holders"]:
            holders = ", ".join(state["holders"])
            raise Conflict(f"{protocol.DRIVE_DIR} is in use by {holders}; cd elsewhere first")
        if state["mounted"] or state["error"]:
            raise Unavailable(f"the box does not take its drive away: {state['error']}")
        await self.forget(box)

    async def leave(self, box: Box) -> None:
        """The box is about to end: what its mount has written is committed while it can be."""
        tunnel = self._tunnels.peek(box.id)
        if box.id not in self._gateways or tunnel is None:
            return
        try:
            await self._ask(tunnel, protocol.DRIVE_UMOUNT, LEAVE_S, force=True)
        except BoxdError as error:
            _log.warning("the drive was cut off: %s", error, extra={"box": box.id})

    async def forget(self, box: Box) -> None:
        """The box's grant is over, with every connection that it opened. No error without one."""
        await self._end(box.id)

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """The host has no mount of a volume: those in boxes end with the boxes."""
        del owner, workspace, volume_id

    async def release_unused(self, wanted: set[Workspace]) -> None:
        """Ends the grants of boxes that this daemon has not found running. After adoption."""
        del wanted
        for box_id in list(self._grants):
            if box_id not in self._used:
                await self._end(box_id)

    async def info(self, box: Box) -> dict[str, object]:
        """What `box-guest workspace info` shows."""
        told: dict[str, object] = {
            "mounted": False,
            "path": str(protocol.DRIVE_DIR),
            "workspace": box.workspace or "(default)",
            "mount": "by the box itself",
        }
        tunnel = self._tunnels.peek(box.id)
        if box.id not in self._gateways or tunnel is None:
            return told
        state = await self._ask(tunnel, protocol.DRIVE_INFO, INFO_S)
        told |= {"mounted": state["mounted"], "restarts": state["restarts"]}
        if state["error"]:
            told["error"] = state["error"]
        # What the mount says comes from the box: it cannot take the place of what is known here.
        return {**state["health"], **told}

    async def close(self) -> None:
        """Ends the ways to the stores; grants stay for the next daemon."""
        await self._tasks.close()
        for gateway in list(self._gateways.values()):
            await gateway.close()
        self._gateways.clear()

    async def _granted(self, box: Box, volume: VolumeConfig) -> Grant:
        """The box's grant, made and written down if it has none. Unavailable."""
        found = self._grants.get(box.id)
        if found is not None and found.volume == volume.volume:
            return found
        access_key, secret = await self._issuer.issue(volume.store.prefix)
        if access_key == self._shared_key:
            raise Unavailable(
                "the object store's credential opens all drives, and no box may have it; list "
                "`volumes` with credentials of their own in the --store-file"
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
            # The next daemon tries again: the grant's file is there, and nobody uses it.
            _log.warning("credential not ended: %s", error, extra={"box": box_id})
            return
        self._grants.pop(box_id, None)
        await asyncio.to_thread((self._directory / box_id).unlink, missing_ok=True)

    async def _ask(
        self, tunnel: Tunnel, kind: str, patience: float, **fields: object
    ) -> dict[str, Any]:
        """The agent's answer, checked. Unavailable."""
        try:
            async with asyncio.timeout(patience):
                return protocol.drive_state(await tunnel.ask(kind, **fields))
        except TimeoutError:
            raise Unavailable(f"the box's agent did not answer within {patience:.0f} s") from None
        except protocol.ProtocolError as error:
            raise Unavailable(f"the box's agent: {error}") from None


def _credentials(volume: VolumeConfig, grant: Grant, database: str) -> VolumeConfig:
    """What the box gets: its own token and credential, and places in the box."""
    query = urlencode({"host": str(protocol.GATE_DIR)})
    dsn = f"postgresql://{quote(volume.schema)}:{grant.token.reveal()}@/{quote(database)}?{query}"
    store = replace(
        volume.store,
        endpoint=UNSET,
        access_key=grant.access_key,
        secret_key=grant.secret.reveal(),
    )
    return replace(volume, meta_dsn=dsn, store=store)
