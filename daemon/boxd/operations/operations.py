"""The operations of the service: one object, with one family of methods in each attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from boxd.boxes.limits.budgets.output import Allowances
from boxd.observation import UNOBSERVED
from boxd.operations.agent_requests.commands import CommandOperations
from boxd.operations.agent_requests.ports import PortOperations
from boxd.operations.agent_requests.watches import WatchOperations
from boxd.operations.agents import AgentOperations
from boxd.operations.asks import AskOperations
from boxd.operations.boxes import BoxOperations
from boxd.operations.builds import BuildOperations
from boxd.operations.canvases import CanvasOperations
from boxd.operations.delegate import DelegateOperations
from boxd.operations.drives import DriveOperations
from boxd.operations.fleet import FleetOperations
from boxd.operations.keys import KeyOperations
from boxd.operations.owners import OwnerOperations
from boxd.operations.preview_sessions import PreviewSessionOperations
from boxd.operations.profiles import ProfileOperations
from boxd.operations.secrets import SecretOperations
from boxd.operations.shared.audits import Audits
from boxd.operations.shared.box_directory import BoxDirectory
from boxd.operations.shared.callers import Callers
from boxd.operations.shared.idempotent import IdempotentRequests
from boxd.operations.shared.user_texts import UserTexts
from boxd.operations.shared.vault import Vault
from boxd.operations.shared.workspace_registry import WorkspaceRegistry
from boxd.operations.shares import ShareOperations
from boxd.operations.snapshots import SnapshotOperations
from boxd.operations.stats import StatOperations
from boxd.operations.visits import VisitOperations
from boxd.operations.volumes.copies import CopyOperations
from boxd.operations.volumes.trash import TrashOperations
from boxd.operations.workspaces import WorkspaceOperations

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.lifecycle.lifecycle import Lifecycle
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.limits.tiers import Tiers
    from boxd.boxes.state.interface import Catalog
    from boxd.clock import Clock
    from boxd.config import Address
    from boxd.observation import Observer
    from boxd.operations.shared.drives import Drives
    from boxd.store.interface import ControlStore
    from boxd.workspaces.seal import Sealer


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependencies:
    """The parts of the service that the operations use."""

    store: ControlStore
    lifecycle: Lifecycle
    catalog: Catalog
    drives: Drives | None
    """None: drives are not enabled on this host."""
    tier_of: Callable[[str], Tier]
    """Returns the limits of an owner."""
    tiers: Tiers
    """The tiers, and the owners that the operator assigned to them."""
    access_policy: AccessPolicy
    clock: Clock
    sealer: Sealer
    """Encrypts the secrets and tokens of owners."""
    ssh_host: Address | None = None
    """The SSH address that users type; None if the operator has not configured one."""
    observer: Observer = UNOBSERVED


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """The interface for SSH, HTTP and MCP. Each attribute is one family of methods."""

    agents: AgentOperations
    asks: AskOperations
    boxes: BoxOperations
    builds: BuildOperations
    callers: Callers
    """Admission of authenticated callers, and their last use."""
    canvases: CanvasOperations
    catalog: Catalog
    """Images and flavors."""
    commands: CommandOperations
    """Background commands of boxes."""
    copies: CopyOperations
    """Clones and snapshots of trees on drives."""
    delegations: DelegateOperations
    directory: BoxDirectory
    """Resolves box references."""
    drives: DriveOperations
    fleet: FleetOperations
    """Commands of administrators on boxes and the host."""
    idempotent: IdempotentRequests
    """Requests with an idempotency key."""
    keys: KeyOperations
    observer: Observer
    """Receives reports about the work for clients."""
    output: Allowances
    """The budget of each owner for output that this process buffers."""
    owners: OwnerOperations
    """Commands of administrators on owners."""
    ports: PortOperations
    preview_sessions: PreviewSessionOperations
    profiles: ProfileOperations
    secrets: SecretOperations
    shares: ShareOperations
    snapshots: SnapshotOperations
    stats: StatOperations
    texts: UserTexts
    trash: TrashOperations
    visits: VisitOperations
    watches: WatchOperations
    """Changes of files in boxes."""
    workspaces: WorkspaceOperations

    @classmethod
    def compose(cls, dependencies: Dependencies) -> Self:
        """Build all families from the parts of the service."""
        store, lifecycle, clock = dependencies.store, dependencies.lifecycle, dependencies.clock
        tier_of, access_policy, drives, catalog = (
            dependencies.tier_of,
            dependencies.access_policy,
            dependencies.drives,
            dependencies.catalog,
        )
        feed, ends, attachments = lifecycle.feed, lifecycle.expiry_notifier, lifecycle.attachments
        registry = WorkspaceRegistry(store, tier_of, clock)
        directory = BoxDirectory(store, lifecycle, catalog, access_policy, registry, clock)
        callers = Callers(store, clock, access_policy, lifecycle.source_addresses)
        vault = Vault(store, dependencies.sealer)
        audits = Audits(store, clock)
        output = Allowances()
        drive_operations = DriveOperations(store, registry, drives)
        boxes = BoxOperations(directory, registry, lifecycle, callers, vault, tier_of)
        keys = KeyOperations(store, registry, attachments, callers, tier_of, clock)
        profiles = ProfileOperations(store, catalog, lifecycle)
        return cls(
            agents=AgentOperations(store, vault, clock),
            asks=AskOperations(store, directory, feed, ends, clock),
            boxes=boxes,
            builds=BuildOperations(directory, profiles, lifecycle),
            callers=callers,
            canvases=CanvasOperations(store, feed, ends, clock),
            catalog=catalog,
            commands=CommandOperations(boxes),
            copies=CopyOperations(drive_operations),
            delegations=DelegateOperations(store, boxes, vault, output, tier_of),
            directory=directory,
            drives=drive_operations,
            fleet=FleetOperations(store, audits, directory, lifecycle, access_policy),
            idempotent=IdempotentRequests(store, vault, clock),
            keys=keys,
            observer=dependencies.observer,
            output=output,
            owners=OwnerOperations(
                store, audits, keys, lifecycle, dependencies.tiers, access_policy, drives
            ),
            ports=PortOperations(directory, boxes),
            preview_sessions=PreviewSessionOperations(store, directory, lifecycle, callers, clock),
            profiles=profiles,
            secrets=SecretOperations(store, vault, registry, clock),
            shares=ShareOperations(store, directory, boxes, attachments, callers, tier_of, clock),
            snapshots=SnapshotOperations(store, directory, lifecycle),
            stats=StatOperations(store, directory, lifecycle.usage, drives, tier_of),
            texts=UserTexts(dependencies.ssh_host),
            trash=TrashOperations(store, drive_operations),
            visits=VisitOperations(lifecycle, callers),
            watches=WatchOperations(boxes),
            workspaces=WorkspaceOperations(store, registry, profiles, lifecycle, drives, clock),
        )

    async def close(self) -> None:
        """End the restores that run, and wait for writes in the background.

        The store's own deadline bounds the wait.
        """
        await self.trash.close()
        await self.callers.close()
