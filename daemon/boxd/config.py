"""Configuration of the daemon: one frozen field per flag, validated once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

DEFAULT_STATE_DIR = Path("/var/lib/boxd")
DEFAULT_IMAGE = "debian"
DOCKER_SOCKET = Path("/var/run/docker.sock")
BACKENDS = ("runc", "docker")
BACKUPS_KEPT = 30


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that the operator decides.

    `meta_dsn` None means the embedded PostgreSQL, `store_file` None the embedded object server
    (else a JSON file, mode 0600, that names an external S3 endpoint, bucket and credentials).
    `api_addr` None serves no HTTP. Each mounted drive keeps at most `cache_size` bytes of blocks
    below `cache_dir` (None: in the state directory). Removed files of drives can be restored for
    `trash_seconds`; 0: not at all.

    The keys in `admin_keys` open the console of administrators; None: nobody's do.

    Addresses in `trusted_sources` are no strangers to the SSH listener, as loopback is none.

    Whose forwarded headers count: the addresses and networks of `trusted_proxy`, with commas.
    Ports of boxes are also served at hosts below `preview_domain` (lower case; None: at none);
    with `partitioned_cookies` a browser keeps their cookie apart for each site that embeds them.

    Pages of other origins, `api_origins`, may use MCP by HTTP.

    `ssh_host` is what users type to reach `ssh_addr`, behind NAT or by a name; None: that address;
    its port 0: the one of `ssh_addr`.

    `backend` makes the boxes: `runc`, or `docker` by the engine at `docker_socket`. `boxes_size`
    bytes hold the writable layers of all boxes (None: chosen by free space; 0: no limits on disks).
    `templates`: boxes are made from the memory of one that has just started, where that works.
    `mount_in_box`: the agents of boxes mount their drives, with rights that boxes have not else.
    `idle_timeout`, `idle_reap` and `grace`: see `boxes.policy`. `max_running` boxes, `max_memory`
    bytes of their caps and `min_free` bytes of disk bound all; None: see `boxes.hostlimits`.

    Every `backup_every` the control plane is backed up to `backup_url` (a directory or
    s3://BUCKET/PREFIX with `backup_store_file`, None: no backups), encrypted with
    `backup_key_file`; there the newest `backup_keep` archives stay.
    """

    state_dir: Path = DEFAULT_STATE_DIR
    ssh_addr: Address = Address("127.0.0.1", 2222)
    ssh_host: Address | None = None
    api_addr: Address | None = None
    admin_keys: Path | None = None
    trusted_sources: tuple[IPv4Network | IPv6Network, ...] = ()
    meta_dsn: str | None = field(default=None, repr=False)
    store_file: Path | None = None
    cache_dir: Path | None = None
    cache_size: int = 0
    trash_seconds: int = 24 * 3600
    default_image: str = DEFAULT_IMAGE
    backend: str = "runc"
    docker_socket: Path = DOCKER_SOCKET
    boxes_size: int | None = None
    templates: bool = True
    idle_timeout: timedelta = timedelta(minutes=2)
    idle_reap: timedelta = timedelta(hours=3)
    grace: timedelta | None = None
    max_running: int | None = None
    max_memory: int | None = None
    min_free: int | None = None
    workspace_automount: bool = False
    mount_in_box: bool = False
    api_origins: tuple[str, ...] = ()
    trusted_proxy: str = "127.0.0.1"
    preview_domain: str | None = None
    partitioned_cookies: bool = False
    backup_url: str | None = None
    backup_key_file: Path | None = None
    backup_store_file: Path | None = None
    backup_every: timedelta = timedelta(hours=24)
    backup_keep: int = BACKUPS_KEPT
    verbose: bool = False

    @property
    def instance(self) -> str:
        """6 hex digits that tell this installation's host objects (netns, cgroups) from others'."""
        return hashlib.sha256(str(self.state_dir.resolve()).encode()).hexdigest()[:6]
