"""Configuration of the daemon. A field of `Config` declares its flag, default, parser and help.

`boxd.cli` builds its parsers and the `Config` from these declarations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.names.address import (
    Address,
    parse_address,
    parse_networks,
    parse_proxies,
    parse_public_address,
)
from boxd.names.dsn import has_password, parse_dsn, read_dsn_file
from boxd.names.duration import format_duration, parse_duration, parse_seconds
from boxd.names.flag import Flag, Group, declared, flags_of
from boxd.names.hosts import parse_domain, parse_host_names, parse_origins
from boxd.names.size import parse_count, parse_size, parse_spares
from boxd.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Network, IPv6Network

__all__ = [
    "BACKENDS",
    "DEFAULT_IMAGE",
    "DEFAULT_STATE_DIR",
    "EXTERNAL_CACHE_SIZE",
    "Address",
    "Config",
    "flags",
]

DEFAULT_STATE_DIR = Path("/var/lib/boxd")
DEFAULT_IMAGE = "debian"
BACKENDS = ("runc", "docker")
EXTERNAL_CACHE_SIZE = 4 << 30
"""Default bytes of blocks that each mounted drive caches on disk in front of an external store.

The embedded store is on the same disk, so caching its blocks a second time has no benefit.
"""


def _path(text: str, _flag: str) -> Path:
    return Path(text)


def _absolute_path(text: str, _flag: str) -> Path:
    return Path(text).absolute()


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's settings. Each field declares the flag that sets it."""

    state_dir: Path = field(
        default=DEFAULT_STATE_DIR,
        metadata=declared(
            Flag(
                "--state-dir",
                Group.COMMON,
                "store all state in this directory",
                "DIR",
                _absolute_path,
            )
        ),
    )
    verbose: bool = field(
        default=False,
        metadata=declared(Flag("--verbose", Group.COMMON, "log more details", default="off")),
    )

    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    ssh_addr: Address = field(
        default=Address("127.0.0.1", 2222),
        metadata=declared(
            Flag(
                "--ssh-addr",
                Group.LISTENERS,
                "serve SSH at this address",
                "HOST:PORT",
                parse_address,
            )
        ),
    )
    api_addr: Address | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--api-addr",
                Group.LISTENERS,
                "serve the HTTP API at this address",
                "HOST:PORT",
                parse_address,
                default="not served",
            )
        ),
    )
    default_image: str = field(
        default=DEFAULT_IMAGE,
        metadata=declared(
            Flag("--default-image", Group.IMAGES, "image of a box whose spec names none", "NAME")
        ),
    )

    meta_dsn: str | None = field(
        default=None,
        repr=False,
        metadata=declared(
            Flag(
                "--meta-dsn",
                Group.STORES,
                "connect to this PostgreSQL; the DSN must not contain a password",
                "DSN",
                parse_dsn,
                default="embedded PostgreSQL",
                holds_secret=has_password,
            ),
            Flag(
                "--meta-dsn-file",
                Group.STORES,
                "read the DSN of the PostgreSQL from this file (mode 0600)",
                "FILE",
                read_dsn_file,
                default="embedded PostgreSQL",
            ),
        ),
    )
    """None: the embedded PostgreSQL."""
    store_file: Path | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--store-file",
                Group.STORES,
                "use the S3 endpoint, bucket and credentials in this JSON file (mode 0600; format: "
                "docs/operate/own-postgresql-and-s3.md)",
                "FILE",
                _path,
                default="embedded object server",
            )
        ),
    )
    """None: the embedded object server."""

    backend: str = field(
        default="runc",
        metadata=declared(
            Flag("--backend", Group.BACKEND, "create boxes with this backend", choices=BACKENDS)
        ),
    )
    docker_socket: Path = field(
        default=Path("/var/run/docker.sock"),
        metadata=declared(
            Flag(
                "--docker-socket",
                Group.BACKEND,
                "socket of the engine for the docker backend",
                "PATH",
                _absolute_path,
            )
        ),
    )
    privileged_boxes: bool = field(
        default=False,
        metadata=declared(
            Flag(
                "--privileged-boxes",
                Group.BACKEND,
                "run boxes whose root is root of this host, if it lacks user namespaces: see "
                "SECURITY.md",
                default="off",
            )
        ),
    )

    idle_timeout: timedelta = field(
        default=timedelta(minutes=2),
        metadata=declared(
            Flag(
                "--idle-timeout",
                Group.BOXES,
                "suspend a box after it has been idle this long",
                "DURATION",
                parse_duration,
            )
        ),
    )
    """`boxes.timing.policy` defines the limits of this field and the next two."""
    idle_reap: timedelta = field(
        default=timedelta(hours=3),
        metadata=declared(
            Flag(
                "--idle-reap",
                Group.BOXES,
                "remove a box after it has been suspended this long",
                "DURATION",
                parse_duration,
            )
        ),
    )
    grace: timedelta | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--grace",
                Group.BOXES,
                "keep a box awake this long after the last detach",
                "DURATION",
                parse_duration,
                default="no grace period",
            )
        ),
    )
    names: str = field(
        default="owner",
        metadata=declared(
            Flag(
                "--names",
                Group.BOXES,
                "make box names in default workspaces unique for each owner, or for all owners",
                choices=("owner", "global"),
            )
        ),
    )
    templates: bool = field(
        default=True,
        metadata=declared(
            Flag(
                "--no-templates",
                Group.BOXES,
                "boot every new box instead of copying the memory of a booted one",
                default="off",
            )
        ),
    )

    prepared_boxes: int = field(
        default=1,
        metadata=declared(
            Flag(
                "--prepared-boxes",
                Group.BOXES,
                "keep this many frozen copies of the last template, which become new boxes at once",
                "N",
                parse_spares,
            )
        ),
    )
    boxes_size: int | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--boxes-size",
                Group.LIMITS,
                "limit the disks of all boxes together to this size; 0: no limit on any disk",
                "SIZE",
                parse_size,
                default="chosen by free disk space",
            )
        ),
    )
    """Maximum size of all writable layers, in bytes. None: by free space. 0: no disk limits."""
    max_running: int | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--max-running",
                Group.LIMITS,
                "let at most this many boxes of all owners run at once",
                "N",
                parse_count,
                default="500",
            )
        ),
    )
    """None: `boxes.limits.host` computes the default, also for the next two fields."""
    max_memory: int | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--max-memory",
                Group.LIMITS,
                "limit the sum of the memory limits of running boxes",
                "SIZE",
                parse_size,
                default="chosen by the host's memory",
            )
        ),
    )
    """Maximum sum of memory limits, in bytes."""
    min_free: int | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--min-free",
                Group.LIMITS,
                "start no box while the disk has less free space than this",
                "SIZE",
                parse_size,
                default="2G, at most 5% of the disk",
            )
        ),
    )
    """Minimum free space of the disk, in bytes."""

    workspace_automount: bool = field(
        default=False,
        metadata=declared(
            Flag(
                "--workspace-automount",
                Group.DRIVES,
                "mount the drive at /wrk in every new box",
                default="off",
            )
        ),
    )
    drive: bool = field(
        default=True,
        metadata=declared(
            Flag(
                "--no-drive",
                Group.DRIVES,
                "serve no drive, neither in boxes nor by the API; overrides --workspace-automount",
                default="off",
            )
        ),
    )
    mount_in_box: bool = field(
        default=False,
        metadata=declared(
            Flag(
                "--mount-in-box",
                Group.DRIVES,
                "let agents in boxes mount the drive, which needs more rights: see SECURITY.md",
                default="off",
            )
        ),
    )
    cache_dir: Path | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--cache-dir",
                Group.DRIVES,
                "cache blocks of drives in this directory",
                "DIR",
                _absolute_path,
                default="in the state directory",
            )
        ),
    )
    cache_size: int = field(
        default=0,
        metadata=declared(
            Flag(
                "--cache-size",
                Group.DRIVES,
                "cache at most this much of each mounted drive, for example 20G; 0: no cache",
                "SIZE",
                parse_size,
                default="4G with --store-file, else 0",
            )
        ),
    )
    """Minimum free space of the disk, in bytes."""
    trash_seconds: int = field(
        default=24 * 3600,
        metadata=declared(
            Flag(
                "--trash",
                Group.DRIVES,
                "let users restore removed files for this long; 0: never",
                "DURATION",
                parse_seconds,
                default="24h",
            )
        ),
    )

    ssh_host: Address | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--ssh-host",
                Group.SSH,
                "name and port that users type to reach SSH, for example behind NAT",
                "NAME[:PORT]",
                parse_public_address,
                default="the address and port of --ssh-addr",
            )
        ),
    )
    """Port 0: the port of `ssh_addr`."""
    admin_keys: Path | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--admin-keys",
                Group.SSH,
                "let the public keys in this file open the administrators' console (ssh sudo@...)",
                "FILE",
                _absolute_path,
                default="no administrators",
            )
        ),
    )
    trusted_sources: tuple[IPv4Network | IPv6Network, ...] = field(
        default=(),
        metadata=declared(
            Flag(
                "--trusted-sources",
                Group.SSH,
                "exempt these networks, like loopback, from the SSH limits for unknown clients",
                "NET,...",
                parse_networks,
                default="loopback only",
            )
        ),
    )

    trusted_proxy: str = field(
        default="127.0.0.1",
        metadata=declared(
            Flag(
                "--trusted-proxy",
                Group.HTTP,
                "trust forwarded headers from these addresses and networks (comma-separated)",
                "IP",
                parse_proxies,
            )
        ),
    )
    preview_domain: str | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--preview-domain",
                Group.HTTP,
                "serve the ports of boxes at BOX-PORT.DOMAIN as well",
                "DOMAIN",
                parse_domain,
                default="no preview hosts",
            )
        ),
    )
    """In lower case."""
    partitioned_cookies: bool = field(
        default=False,
        metadata=declared(
            Flag(
                "--partitioned-cookies",
                Group.HTTP,
                "partition preview cookies by embedding site (CHIPS)",
                default="off",
            )
        ),
    )
    api_origins: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            Flag(
                "--api-origins",
                Group.HTTP,
                "let pages of these origins use the API and MCP, for example https://app.example.com",
                "ORIGIN,...",
                parse_origins,
                default="no other origins",
            )
        ),
    )
    api_hosts: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            Flag(
                "--api-hosts",
                Group.HTTP,
                "serve MCP at these host names, besides IP addresses and localhost",
                "NAME,...",
                parse_host_names,
                default="no names",
            )
        ),
    )
    """In lower case."""

    backup_url: str | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--backup-url",
                Group.SCHEDULE,
                "back up the control plane to this place; needs --backup-key-file",
                "DIR|s3://BUCKET/PREFIX",
                default="no backups",
            )
        ),
    )
    backup_every: timedelta = field(
        default=timedelta(hours=24),
        metadata=declared(
            Flag(
                "--backup-every",
                Group.SCHEDULE,
                "make a backup each time this long has passed",
                "DURATION",
                parse_duration,
                default="24h",
            )
        ),
    )
    backup_keep: int = field(
        default=30,
        metadata=declared(
            Flag(
                "--backup-keep",
                Group.SCHEDULE,
                "keep this many archives and remove older ones",
                "N",
                parse_count,
            )
        ),
    )
    backup_key_file: Path | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--backup-key-file",
                Group.BACKUPS,
                "encrypt backups with the key in this file (mode 0600)",
                "FILE",
                _path,
                default="none",
                aliases=("--key-file",),
            )
        ),
    )
    backup_store_file: Path | None = field(
        default=None,
        metadata=declared(
            Flag(
                "--backup-store-file",
                Group.BACKUPS,
                "S3 endpoint and credentials for s3:// backups; same format as --store-file",
                "FILE",
                _path,
                default="none",
            )
        ),
    )

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names at which clients reach the HTTP API: `api_hosts` and the host of `api_addr`."""
        return self.api_hosts if self.api_addr is None else (*self.api_hosts, self.api_addr.host)

    @property
    def instance(self) -> str:
        """Six hex digits in the names of this installation's host objects (netns, cgroups).

        They distinguish the objects from those of other installations on the host.
        """
        return hashlib.sha256(str(self.state_dir.resolve()).encode()).hexdigest()[:6]


def flags() -> Iterator[tuple[str, Flag]]:
    """Yield each flag with the name of its field, in order; see `flags_of` for groups."""
    yield from flags_of(Config())


def default_text(field_name: str, flag: Flag) -> str:
    """Return the default of a flag as help texts show it."""
    if flag.default is not None:
        return flag.default
    value = default_value(field_name)
    return format_duration(value) if isinstance(value, timedelta) else str(value)


def default_value(field_name: str) -> object:
    """Return the default of a field, given its name as `flags` yields it."""
    return attrgetter(field_name)(Config())
