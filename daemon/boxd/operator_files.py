"""The files of the operator that the service reads once at its start.

The part of the service that strangers reach reads them before it gives up its rights. Later it can
read none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.boxes.limits.tier_limits import TIERS_FILE, load_tiers
from boxd.maintenance import catalog_of
from boxd.ssh.connection.admin_keys import AdminKeys
from boxd.workspaces.credentials import ExternalStore

if TYPE_CHECKING:
    from boxd.boxes.limits.tier_limits import Tier
    from boxd.config import Config
    from boxd.images.catalog import Catalog


@dataclass(frozen=True, slots=True)
class OperatorFiles:
    """The content of the operator's files."""

    tiers: dict[str, Tier]
    administrators: AdminKeys
    catalog: Catalog
    """Its recipes and flavors are read already. It looks at the images on the disk when asked."""
    store: ExternalStore | None
    """The object store of the operator. None: the embedded one."""

    @classmethod
    def read(cls, config: Config, *, serve: bool = True) -> OperatorFiles:
        """Read all files. `serve` false: only those that stopping boxes needs.

        Raises BadRequest or Unavailable with the file and its error.
        """
        administrators = AdminKeys(config.admin_keys)
        tiers = load_tiers(config.state_dir / TIERS_FILE if serve else None)
        if serve:  # stopping boxes needs no limits
            administrators.load()
        return cls(
            tiers,
            administrators,
            catalog_of(config),
            None if config.store_file is None else ExternalStore.from_file(config.store_file),
        )
