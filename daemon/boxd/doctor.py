"""What this host can and cannot do: the checks of `boxd doctor`, which `serve` makes first."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import cgroups, criu, fence, hostshares
from boxd.backends.hostnames import HostNames
from boxd.backends.run import run
from boxd.backends.runc import RuncBackend
from boxd.backends.volume import Volume
from boxd.backup import status as backups
from boxd.embedded.postgres_cluster import DISTRIBUTION
from boxd.embedded.statedir import lock_holder
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.config import Address, Config

MIN_KERNEL = (5, 12)
"""Drives come into boxes by open_tree and move_mount (5.2), setns on a pidfd (5.8) and
mount_setattr (5.12)."""
OVERDUE = 2
"""Times its period after which a scheduled backup is missed."""
MIN_FREE = 2 << 30
"""Bytes: an image, its runtime and a new PostgreSQL cluster fit."""
_PROGRAMS = {
    "ip": "iproute2",
    "nft": "nftables",
    "mount": "mount",
}
_PROGRAMS_OF = {"runc": {"runc": "runc"}, "docker": {"tar": "tar"}}
"""Those of a backend alone."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `needed`: `serve` refuses to start without it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = True


def checks(config: Config, *, starting: bool = False) -> list[Check]:
    """All checks of this host for this configuration; changes nothing.

    `starting`: asked by a daemon about to serve, for which a state directory that another one
    serves is a failure. To anybody else it is good news.
    """
    found = [_root(), _fuse(), _kernel(), *_programs(config), *_engine(config), _state_dir(config)]
    busy = lock_holder(config.state_dir)
    found.append(_lock(busy, starting=starting))
    if busy is None:
        found.append(_port("SSH address", config.ssh_addr, "--ssh-addr"))
        if config.api_addr is not None:
            found.append(_port("API address", config.api_addr, "--api-addr"))
    found.extend(_secret_files(config))
    found.append(_image(config))
    found.append(_backup(config))
    found.append(_disks(config))
    found.append(_shares())
    found.append(_cgroups())
    found.extend(_fence())
    return found


def suspending(config: Config) -> Check:
    """Whether this host can suspend boxes. It is tried with one, which takes some seconds.

    What is found out is kept in the state directory; where there is none yet, it is tried beside
    its place and nothing is kept.
    """
    if config.backend != RuncBackend.name:
        from boxd.backends.docker import WHY_NO_SUSPEND

        remedy = "use --backend runc"
        return Check("suspend", ok=False, found=WHY_NO_SUSPEND, remedy=remedy, needed=False)
    try:
        if config.state_dir.is_dir() or os.geteuid() != 0:
            found = asyncio.run(criu.verdict(config.state_dir, again=True))
        else:
            with tempfile.TemporaryDirectory(dir=_existing_parent(config.state_dir)) as place:
                found = asyncio.run(criu.verdict(Path(place)))
    except OSError as error:
        text, remedy = f"suspending could not be tried: {error}", "use another --state-dir"
        return Check("suspend", ok=False, found=text, remedy=remedy, needed=False)
    return Check("suspend", found.suspends, found.text, found.remedy, needed=False)


def boxes_left(config: Config) -> int:
    """How many boxes of this state directory have a network, as those that run have."""
    return len(list(Path("/run/netns").glob(f"boxd-{config.instance}-*")))


def left_running(config: Config) -> bool:
    """Whether an earlier daemon left servers, drives or boxes of this state directory running, or
    on this host what surrounds them: fence, routes, cgroup."""
    inside = str(config.state_dir.resolve()) + "/"
    if boxes_left(config) or _surrounded(config):
        return True
    if inside in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"):
        return True
    own = str(os.getpid())
    processes = (entry for entry in Path("/proc").glob("[0-9]*") if entry.name != own)
    return any(_works_in(process, inside) for process in processes)


def _surrounded(config: Config) -> bool:
    """Whether the cgroup or the fence around all boxes is there. Routes go with the fence."""
    names = HostNames(config.instance, config.state_dir.resolve())
    with suppress(Unavailable, OSError):  # without cgroups nothing has ever run here
        if cgroups.exists(cgroups.detect(), names.cgroup_parent):
            return True
    try:
        asyncio.run(run("nft", "--terse", "list", "table", "inet", names.table))
    except BoxdError:
        return False  # there is none, or no nftables, without which none was made
    return True


def _works_in(process: Path, inside: str) -> bool:
    try:
        place = os.readlink(process / "cwd") + "/"
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False  # it has just ended, or is a thread of the kernel
    return place.startswith(inside) or any(inside in word for word in words)


def _root() -> Check:
    ok = os.geteuid() == 0
    remedy = "run as root (sudo boxd serve): boxes need namespaces, mounts and cgroups"
    return Check("root", ok, f"uid {os.geteuid()}", remedy)


def _fuse() -> Check:
    path = Path("/dev/fuse")
    try:
        ok = stat.S_ISCHR(path.stat().st_mode)
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        remedy = "modprobe fuse (in a container: --device /dev/fuse)"
        return Check("/dev/fuse", ok=False, found=error.strerror or "not usable", remedy=remedy)
    return Check("/dev/fuse", ok, "present", "modprobe fuse")


def _kernel() -> Check:
    release = os.uname().release
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    return Check(
        "kernel", numbers >= MIN_KERNEL, release, "run Linux 5.12 or newer (Debian 12 has 6.1)"
    )


def _programs(config: Config) -> Iterator[Check]:
    for program, package in (_PROGRAMS | _PROGRAMS_OF[config.backend]).items():
        path = shutil.which(program)
        yield Check(program, path is not None, path or "missing", f"apt-get install {package}")
    if config.meta_dsn is None:
        here = next(iter(sorted(DISTRIBUTION.glob("*/bin/postgres"), reverse=True)), None)
        found = str(here) if here else "missing"
        yield Check("postgres", here is not None, found, "apt-get install postgresql-15")


def _engine(config: Config) -> Iterator[Check]:
    if config.backend == RuncBackend.name:
        return
    # Its client takes long to load (see CONTRIBUTING): only who uses it waits for that.
    from boxd.backends.docker_engine import ask

    name = "docker engine"
    try:
        info = asyncio.run(ask(config.docker_socket))
    except Unavailable as error:
        found, _, remedy = str(error).partition("; ")
        yield Check(name, ok=False, found=found, remedy=remedy)
        return
    text = f"{info.version}, API {info.api}, {info.storage_driver}, at {config.docker_socket}"
    if info.cgroup_driver != "cgroupfs":
        text += f"; boxes share no ceiling of memory (cgroup driver {info.cgroup_driver})"
    yield Check(name, ok=True, found=text)


def _state_dir(config: Config) -> Check:
    path, name = config.state_dir, "state directory"
    if not path.exists():
        return _space(name, _existing_parent(path), f"{path} (to be made)")
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return Check(name, ok=False, found=f"{path} is no directory", remedy="use --state-dir DIR")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        remedy = f"chown root {path} && chmod 700 {path}"
        return Check(name, ok=False, found=f"{path} is open to others", remedy=remedy)
    return _space(name, path, str(path))


def _existing_parent(path: Path) -> Path:
    return next(one for one in path.resolve().parents if one.exists())


def _space(name: str, where: Path, shown: str) -> Check:
    free = shutil.disk_usage(where).free
    found = f"{shown}, {free / 2**30:.1f} GiB free"
    return Check(name, free >= MIN_FREE, found, "free at least 2 GiB, or use another --state-dir")


def _lock(holder: str | None, *, starting: bool) -> Check:
    remedy = "stop that boxd first (Ctrl-C there, or: boxd down), or use another --state-dir"
    found = "free" if holder is None else f"served by process {holder}"
    return Check("lock", holder is None or not starting, found, remedy)


def _port(name: str, address: Address, flag: str) -> Check:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            found = f"{address} is taken" if taken else f"{address}: {error.strerror}"
            remedy = f"stop what listens there, or choose another {flag} HOST:PORT"
            return Check(name, ok=False, found=found, remedy=remedy)
    return Check(name, ok=True, found=f"{address} is free")


def _secret_files(config: Config) -> Iterator[Check]:
    for flag, path in (("--store-file", config.store_file),):
        if path is None:
            continue
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            found = f"{path}: {error.strerror}"
            yield Check(flag, ok=False, found=found, remedy=f"make the file, mode 0600: {path}")
            continue
        private = mode & 0o077 == 0
        yield Check(flag, private, f"{path}, mode {mode:04o}", f"chmod 600 {path}")


def _backup(config: Config) -> Check:
    """The outcome of the last backup to each target; the first one that went wrong."""
    known = backups.load(config.state_dir)
    last = "none yet: a lost disk loses boxes' names, keys and workspaces"
    for url, one in known.items():
        remedy = f"look whether {url} can be written; boxd tries again by itself"
        if one.failed is not None:
            found = f"to {url} failed {one.failed:%Y-%m-%d %H:%M} UTC: {one.why}"
            return Check("backup", ok=False, found=found, remedy=remedy, needed=False)
        if one.succeeded is None:
            continue
        last = f"{one.archive} in {url}"
        if one.every is not None and datetime.now(UTC) > one.succeeded + OVERDUE * one.every:
            found = f"the last to {url} is of {one.succeeded:%Y-%m-%d %H:%M} UTC"
            remedy = f"serve with --backup-url; without, remove {config.state_dir / backups.FILE}"
            return Check("backup", ok=False, found=found, remedy=remedy, needed=False)
    return Check("backup", ok=True, found=last)


def _disks(config: Config) -> Check:
    name = "disks of boxes"
    if config.backend != RuncBackend.name:
        found, remedy = "no limits: the engine sets none", "use --backend runc"
        return Check(name, ok=False, found=found, remedy=remedy, needed=False)
    try:
        found = Volume(config.state_dir, config.boxes_size).outlook()
    except Unavailable as error:
        reason, _, remedy = str(error).partition("; ")
        return Check(name, ok=False, found=f"no limits: {reason}", remedy=remedy, needed=False)
    return Check(name, ok=True, found=f"limited, on {found}")


def _shares() -> Check:
    """What the kernel counts for all boxes together; `serve` raises it where it may."""
    name, lacking = "shared limits", hostshares.lacking()
    if not lacking:
        return Check(name, ok=True, found="more than one box can use up")
    found = ", ".join(f"{share.name} is {share.present()}" for share in lacking)
    may = all(os.access(share.file(), os.W_OK) for share in lacking)
    found += "; raised at the start" if may else ": one box can use that up"
    return Check(name, may, found, remedy=hostshares.command(lacking), needed=False)


def _cgroups() -> Check:
    """What bounds boxes; hosts mount it in three ways."""
    try:
        layout = cgroups.detect()
    except (Unavailable, OSError) as error:
        remedy = "mount cgroup2 at /sys/fs/cgroup, with the controllers cpu, memory and pids"
        return Check("cgroups", ok=False, found=str(error), remedy=remedy)
    if cgroups.caps_swap(layout):
        return Check("cgroups", ok=True, found=f"{layout.mode}, swap of boxes is capped")
    found = f"{layout.mode}; boxes may use swap beyond their memory"
    remedy = "boot with swapaccount=1, or without swap"
    return Check("cgroups", ok=False, found=found, remedy=remedy, needed=False)


def _fence() -> Iterator[Check]:
    """Whether the kernel takes the rules around boxes, which are not loaded by this."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        return  # told above
    try:
        asyncio.run(run("nft", "--check", "-f", "-", stdin=fence.ruleset(fence.SAMPLE)))
    except BoxdError as error:
        remedy = "modprobe nf_tables nft_chain_nat nft_reject_inet nft_connlimit"
        yield Check("network fence", ok=False, found=str(error), remedy=remedy)
    else:
        yield Check("network fence", ok=True, found="nftables takes its rules")


def _image(config: Config) -> Check:
    built = (config.state_dir / "images" / config.default_image / "rootfs").is_dir()
    maker = shutil.which("mmdebstrap")
    if built or maker is not None:
        found = "built" if built else "built at the first start, which takes about a minute"
        return Check(f"image {config.default_image}", ok=True, found=found)
    return Check(
        f"image {config.default_image}",
        ok=False,
        found="not built, and mmdebstrap is missing",
        remedy="apt-get install mmdebstrap",
    )
