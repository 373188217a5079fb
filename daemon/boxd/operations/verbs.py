"""All verbs of the service in one class, a family in each of the other files."""

from __future__ import annotations

from boxd.operations.agents import AgentOperations
from boxd.operations.asks import AskOperations
from boxd.operations.builds import BuildOperations
from boxd.operations.canvases import CanvasOperations
from boxd.operations.catalogs import CatalogOperations
from boxd.operations.delegate import DelegateOperations
from boxd.operations.drive import DriveOperations
from boxd.operations.fleet import FleetOperations
from boxd.operations.profiles import ProfileOperations
from boxd.operations.proxies import ProxyOperations
from boxd.operations.secrets import SecretOperations
from boxd.operations.shares import ShareOperations
from boxd.operations.snapshots import SnapshotOperations
from boxd.operations.stats import StatOperations
from boxd.operations.visits import VisitOperations
from boxd.operations.workspaces import WorkspaceOperations


class Operations(
    AskOperations,
    DelegateOperations,
    SnapshotOperations,
    BuildOperations,
    ShareOperations,
    ProxyOperations,
    StatOperations,
    WorkspaceOperations,
    FleetOperations,
    CatalogOperations,
    DriveOperations,
    ProfileOperations,
    SecretOperations,
    AgentOperations,
    CanvasOperations,
    VisitOperations,
):
    """What every surface calls. Made of the parts that `Core` names."""
