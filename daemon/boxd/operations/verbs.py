"""All verbs of the service in one class, a family in each of the other files."""

from __future__ import annotations

from boxd.operations.catalogs import CatalogOperations
from boxd.operations.drive import DriveOperations
from boxd.operations.keys import KeyOperations
from boxd.operations.profiles import ProfileOperations
from boxd.operations.shares import ShareOperations
from boxd.operations.snapshots import SnapshotOperations


class Operations(
    SnapshotOperations,
    ShareOperations,
    CatalogOperations,
    DriveOperations,
    KeyOperations,
    ProfileOperations,
):
    """What every surface calls. Made of the parts that `Core` names."""
