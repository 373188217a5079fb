"""Compares the mounts of a box with its OCI configuration.

CRIU recreates the mounts of a restored box and can lose their options. A box without one of these
options can write to the host, so it must not run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.backends.host import mounts
from boxd.backends.oci.bundle import DRIVE_DIR, MASKED_PATHS, range_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECURITY_OPTIONS = frozenset({"ro", "nosuid", "nodev", "noexec"})
_CGROUP = "/sys/fs/cgroup"
_CGROUP_KINDS = frozenset({"tmpfs", "cgroup", "cgroup2"})
_MEMORY = frozenset({"tmpfs"})
_NULL_KINDS = frozenset({"tmpfs", "devtmpfs"})
_PROPAGATES = ("shared:", "master:")
_DEVICES = frozenset({"/null", "/zero", "/full", "/tty", "/random", "/urandom"})
"""Devices of the host in the /dev of a box with a user namespace, which cannot create its own."""
_NULL_ROOT = "/null"
_NULL_OPTIONS = frozenset({"nosuid", "noexec"})
"""Options at a masked file where runc has mounted the null device of the box itself."""
_MOST = 5
"""Maximum number of differences that one message names."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of a mountinfo file.

    `options` are the mount's options that are in SECURITY_OPTIONS. `read_only` is the state of the
    superblock. `propagation` names the kinds of peers to which the mount propagates.
    """

    place: str
    device: str
    root: str
    kind: str
    options: frozenset[str]
    read_only: bool
    propagation: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Demand:
    """The required mount at a place. `kinds` are the allowed file systems; None allows any."""

    options: frozenset[str]
    kinds: frozenset[str] | None = None
    read_only: bool = False
    optional: bool = False


def parse(mountinfo: str) -> list[Mount]:
    """Return all mounts of a table in order. Paths keep the escapes of the kernel."""
    return [_mount(row) for row in mounts.rows(mountinfo)]


def _mount(row: list[str]) -> Mount:
    end = row.index("-", 6)
    return Mount(
        place=row[4],
        device=row[2],
        root=row[3],
        kind=row[end + 1],
        options=SECURITY_OPTIONS & frozenset(row[5].split(",")),
        read_only="ro" in row[-1].split(","),
        propagation=tuple(
            word.partition(":")[0] for word in row[6:end] if word.startswith(_PROPAGATES)
        ),
    )


def differences(
    config: dict[str, Any], table: list[Mount], is_here: Callable[[str], bool] = os.path.exists
) -> list[str]:
    """Return the differences between a box's mounts and its configuration, one sentence each.

    `config` is the content of the box's config.json. It may name masked and read-only paths that
    this kernel does not have: `is_here` tests a path. All others must be mounted over.
    """
    demands = _demands(config, is_here)
    own_users = range_of(config) is not None
    foreign = [mount.place for mount in table if _is_foreign(mount, own_users=own_users)]
    return [
        *(f"{place} is a file of the host" for place in foreign),
        *(f"nothing is mounted at {place}" for place in _missing(demands, table)),
        *_faults(demands, table),
    ]


def summary(sentences: list[str]) -> str:
    """Return differences in one line of bounded length."""
    rest = f", and {len(sentences) - _MOST} more" if len(sentences) > _MOST else ""
    return "; ".join(sentences[:_MOST]) + rest


def shared_sources(config: dict[str, Any]) -> list[str]:
    """Return sources of more than one bind mount of a configuration: CRIU loses their options."""
    sources = [mount["source"] for mount in config["mounts"] if mount["type"] == "bind"]
    return sorted({source for source in sources if sources.count(source) > 1})


def _options_of_null(mount: Mount, box_devices: str) -> frozenset[str] | None:
    """Return the options that the mount of a null device needs; None for other mounts.

    A box cannot change the null device of the host or of `masks`. Its own null device is a file in
    its /dev, which it may rename or remove.
    """
    if mount.root == _NULL_ROOT and (mount.kind == "devtmpfs" or mount.read_only):
        return frozenset()
    if mount.kind == "tmpfs" and (mount.root == _NULL_ROOT or mount.device == box_devices):
        return _NULL_OPTIONS
    return None


def _is_foreign(mount: Mount, *, own_users: bool) -> bool:
    if mount.kind != "devtmpfs":
        return False
    return not own_users or mount.root not in _DEVICES


def _missing(demands: dict[str, _Demand], table: list[Mount]) -> list[str]:
    places = {mount.place for mount in table}
    return [
        place for place, demand in demands.items() if not demand.optional and place not in places
    ]


def _faults(demands: dict[str, _Demand], table: list[Mount]) -> Iterator[str]:
    box_devices = next((mount.device for mount in table if mount.place == "/dev"), "")
    places = set[str]()
    for mount in table:
        place = mount.place
        demand = demands.get(place)
        if demand is None and place.startswith(f"{_CGROUP}/"):
            demand = _Demand(SECURITY_OPTIONS, _CGROUP_KINDS)
        if demand is None or place in places:
            yield f"there is an extra mount at {place}"
        else:
            options = _options_of_null(mount, box_devices)
            needed = demand.options if options is None else options
            yield from _faults_of(mount, demand, needed - mount.options)
        places.add(place)


def _faults_of(mount: Mount, demand: _Demand, missing_options: frozenset[str]) -> Iterator[str]:
    """Yield the first property that the mount lacks, if any."""
    if missing_options:
        yield f"{mount.place} is not {', '.join(sorted(missing_options))}"
    elif mount.propagation:
        yield f"{mount.place} propagates to other mount namespaces"
    elif demand.kinds is not None and mount.kind not in demand.kinds:
        yield f"{mount.place} is a file system of type {mount.kind}"
    elif demand.read_only and not mount.read_only:
        yield f"the file system at {mount.place} is not read-only"


def _demands(config: dict[str, Any], is_here: Callable[[str], bool]) -> dict[str, _Demand]:
    """Return the required and the allowed mount at each place of a box."""
    linux = config["linux"]
    own_users = range_of(config) is not None
    devices = [f"/dev{root}" for root in _DEVICES] if own_users else []
    return {
        "/": _Demand(frozenset({"nodev"})),
        DRIVE_DIR: _Demand(frozenset({"nosuid", "nodev"}), optional=True),
        **{
            path: _Demand(
                frozenset({"ro"}),
                _NULL_KINDS if own_users else _MEMORY,
                optional=not is_here(path),
            )
            for path in linux["maskedPaths"]
        },
        **{place: _Demand(frozenset(), _NULL_KINDS) for place in devices},
        **{
            path: _Demand(SECURITY_OPTIONS, frozenset({"proc"}), optional=not is_here(path))
            for path in linux["readonlyPaths"]
        },
        **_demands_of_mounts(config),
    }


def _demands_of_mounts(config: dict[str, Any]) -> dict[str, _Demand]:
    # The masks of older releases have one common source, an empty directory of the host.
    are_masks_memory = not shared_sources(config)
    demands = {}
    for mount in config["mounts"]:
        place, kind = mount["destination"], mount["type"]
        options = SECURITY_OPTIONS & frozenset(mount["options"])
        if kind == "bind":
            hides = place in MASKED_PATHS and are_masks_memory
            demands[place] = _Demand(options, _MEMORY if hides else None, read_only=hides)
        elif kind == "cgroup":
            # With cgroup v1, a tmpfs above read-only hierarchies.
            demands[place] = _Demand(options - {"ro"}, _CGROUP_KINDS)
        else:
            demands[place] = _Demand(options, frozenset({kind}))
    return demands
