"""The checks of `boxd doctor`: what this host supports.

`boxd serve` makes the same checks before it starts.
"""

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
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import criu, obstacles
from boxd.backends.disks.volume import Volume
from boxd.backends.host import cgroups, fuse_kernel, id_maps, shares
from boxd.backends.host.id_ranges import IdRange
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import run
from boxd.backends.network import fence
from boxd.backends.oci import lxcfs
from boxd.backends.runc.backend import RuncBackend
from boxd.backends.runc.containers import NO_USERS
from boxd.backup import status as backups
from boxd.embedded.postgres_cluster import DISTRIBUTION
from boxd.embedded.statedir import lock_holder
from boxd.errors import BoxdError, Unavailable
from boxd.sandbox.id_claims import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.config import Address, Config

MIN_KERNEL = (5, 12)
"""The daemon mounts drives in boxes with open_tree and move_mount (5.2), setns on a pidfd (5.8) and
mount_setattr (5.12)."""
OVERDUE = 2
"""A scheduled backup is overdue after this many of its periods."""
MIN_FREE = 2 << 30
"""Bytes that an image, its runtime and a new PostgreSQL cluster need."""
_PROGRAMS = {
    "ip": "iproute2",
    "nft": "nftables",
    "mount": "mount",
}
_PROGRAMS_OF = {"runc": {"runc": "runc"}, "docker": {"tar": "tar"}}
"""Programs that only one backend needs, by backend."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `serve` does not start if a `needed` check fails."""

    name: str
    ok: bool
    finding: str
    remedy: str = ""
    needed: bool = True


def checks(config: Config, *, starting: bool = False) -> list[Check]:
    """Return all checks of this host for a configuration. The checks change nothing.

    `starting`: the caller is a daemon that is about to serve. If another daemon serves the state
    directory, the check then fails; for `boxd doctor` it does not.
    """
    results = [
        _root(),
        _fuse(),
        _kernel(),
        *_programs(config),
        *_engine(config),
        _state_dir(config),
    ]
    busy = lock_holder(config.state_dir)
    results.append(_lock(busy, starting=starting))
    if busy is None:
        results.append(_port("SSH address", config.ssh_addr, "--ssh-addr"))
        if config.api_addr is not None:
            results.append(_port("API address", config.api_addr, "--api-addr"))
        if (metrics_addr := config.telemetry.metrics_addr) is not None:
            results.append(_port("metrics address", metrics_addr, "--metrics-addr"))
    results.extend(_secret_files(config))
    results.append(_image(config))
    results.append(_backup(config))
    results.append(_disks(config))
    results.append(_shares())
    if config.backend == RuncBackend.name:
        results.append(_users(config))
        if config.privileged_boxes:
            results.append(_limits_of_others())
        results.append(_sizes())
    results.append(_cgroups())
    results.extend(_fence())
    return results


def suspending(config: Config) -> Check:
    """Check whether this host can suspend boxes. The trial with one box takes some seconds.

    The state directory stores the result. If there is no state directory yet, the trial runs in its
    parent directory and stores nothing.
    """
    if config.backend != RuncBackend.name:
        from boxd.backends.docker.backend import WHY_NO_SUSPEND

        remedy = "use --backend runc"
        return Check("suspend", ok=False, finding=WHY_NO_SUSPEND, remedy=remedy, needed=False)
    try:
        if config.state_dir.is_dir() or os.geteuid() != 0:
            verdict = asyncio.run(criu.verdict(config.state_dir, again=True))
        else:
            with tempfile.TemporaryDirectory(dir=_existing_parent(config.state_dir)) as place:
                verdict = asyncio.run(criu.verdict(Path(place)))
    except OSError as error:
        text, remedy = (
            f"the trial suspension of a box could not start: {error}",
            "use another --state-dir",
        )
        return Check("suspend", ok=False, finding=text, remedy=remedy, needed=False)
    return Check("suspend", verdict.suspends, verdict.text, verdict.remedy, needed=False)


def boxes_left(config: Config) -> int:
    """Return the number of boxes of this state directory that have a network: the running ones."""
    return len(list(Path("/run/netns").glob(f"boxd-{config.instance}-*")))


def left_running(config: Config) -> bool:
    """Return whether servers, drives or boxes of an earlier daemon are still running.

    The fence, the routes and the cgroup around its boxes count too.
    """
    inside = str(config.state_dir.resolve()) + "/"
    if boxes_left(config) or _surrounded(config):
        return True
    if inside in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"):
        return True
    own = str(os.getpid())
    processes = (entry for entry in Path("/proc").glob("[0-9]*") if entry.name != own)
    return any(_works_in(process, inside) for process in processes)


def _surrounded(config: Config) -> bool:
    """Return whether the cgroup or the fence around all boxes exists.

    The fence includes the routes.
    """
    names = HostNames(config.instance, config.state_dir.resolve())
    with suppress(Unavailable, OSError):  # no cgroups: no box has ever run here
        if cgroups.exists(cgroups.detect(), names.cgroup_parent):
            return True
    try:
        asyncio.run(run("nft", "--terse", "list", "table", "inet", names.table))
    except BoxdError:
        return False  # no fence, or no nftables to create one
    return True


def _works_in(process: Path, inside: str) -> bool:
    try:
        place = os.readlink(process / "cwd") + "/"
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False  # the process has just ended, or is a kernel thread
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
        return Check("/dev/fuse", ok=False, finding=error.strerror or "not usable", remedy=remedy)
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
        finding = str(here) if here else "missing"
        yield Check("postgres", here is not None, finding, "apt-get install postgresql-15")


def _engine(config: Config) -> Iterator[Check]:
    if config.backend == RuncBackend.name:
        return
    # The import of the client is slow (see CONTRIBUTING), so other backends skip it.
    from boxd.backends.docker.engine import ask

    name = "docker engine"
    try:
        info = asyncio.run(ask(config.docker_socket))
    except Unavailable as error:
        finding, _, remedy = str(error).partition("; ")
        yield Check(name, ok=False, finding=finding, remedy=remedy)
        return
    text = f"{info.version}, API {info.api}, {info.storage_driver}, at {config.docker_socket}"
    if info.cgroup_driver != "cgroupfs":
        text += f"; boxes have no common memory limit (cgroup driver {info.cgroup_driver})"
    yield Check(name, ok=True, finding=text)


def _state_dir(config: Config) -> Check:
    path, name = config.state_dir, "state directory"
    if not path.exists():
        return _space(name, _existing_parent(path), f"{path} (will be created)")
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return Check(
            name, ok=False, finding=f"{path} is not a directory", remedy="use --state-dir DIR"
        )
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        remedy = f"chown root {path} && chmod 700 {path}"
        return Check(name, ok=False, finding=f"{path} is accessible to other users", remedy=remedy)
    return _space(name, path, str(path))


def _existing_parent(path: Path) -> Path:
    return next(one for one in path.resolve().parents if one.exists())


def _space(name: str, where: Path, text: str) -> Check:
    free = shutil.disk_usage(where).free
    finding = f"{text}, {free / 2**30:.1f} GiB free"
    return Check(name, free >= MIN_FREE, finding, "free at least 2 GiB, or use another --state-dir")


def _lock(holder: str | None, *, starting: bool) -> Check:
    remedy = "stop that boxd first (Ctrl-C, or `boxd down`), or use another --state-dir"
    finding = "free" if holder is None else f"served by process {holder}"
    return Check("lock", holder is None or not starting, finding, remedy)


def _port(name: str, address: Address, flag: str) -> Check:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            finding = f"{address} is in use" if in_use else f"{address}: {error.strerror}"
            remedy = f"stop the program that listens there, or choose another {flag} HOST:PORT"
            return Check(name, ok=False, finding=finding, remedy=remedy)
    return Check(name, ok=True, finding=f"{address} is free")


def _secret_files(config: Config) -> Iterator[Check]:
    for flag, path in (("--store-file", config.store_file),):
        if path is None:
            continue
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            finding = f"{path}: {error.strerror}"
            yield Check(
                flag, ok=False, finding=finding, remedy=f"create the file with mode 0600: {path}"
            )
            continue
        private = mode & 0o077 == 0
        yield Check(flag, private, f"{path}, mode {mode:04o}", f"chmod 600 {path}")


def _backup(config: Config) -> Check:
    """Check the last backup to each target; report the first failure."""
    statuses = backups.load(config.state_dir)
    last = "no backup yet: if the disk fails, names of boxes, keys and workspaces are lost"
    for url, one in statuses.items():
        remedy = f"check that boxd can write to {url}; boxd retries automatically"
        if one.failed is not None:
            finding = f"backup to {url} failed at {one.failed:%Y-%m-%d %H:%M} UTC: {one.why}"
            return Check("backup", ok=False, finding=finding, remedy=remedy, needed=False)
        if one.succeeded is None:
            continue
        last = f"{one.archive} in {url}"
        if one.every is not None and datetime.now(UTC) > one.succeeded + OVERDUE * one.every:
            finding = f"the last backup to {url} is from {one.succeeded:%Y-%m-%d %H:%M} UTC"
            remedy = f"serve with --backup-url, or remove {config.state_dir / backups.FILE}"
            return Check("backup", ok=False, finding=finding, remedy=remedy, needed=False)
    return Check("backup", ok=True, finding=last)


def _disks(config: Config) -> Check:
    name = "disks of boxes"
    if config.backend != RuncBackend.name:
        finding, remedy = "no limits: the engine does not support them", "use --backend runc"
        return Check(name, ok=False, finding=finding, remedy=remedy, needed=False)
    try:
        finding = Volume(config.state_dir, config.boxes_size).outlook()
    except Unavailable as error:
        reason, _, remedy = str(error).partition("; ")
        return Check(name, ok=False, finding=f"no limits: {reason}", remedy=remedy, needed=False)
    return Check(name, ok=True, finding=f"limited, on {finding}")


def _shares() -> Check:
    """Check the kernel limits that all boxes share. `serve` raises them if it is allowed to."""
    name, lacking = "shared limits", shares.lacking()
    if not lacking:
        return Check(name, ok=True, finding="one box cannot use them up")
    finding = ", ".join(f"{share.name} is {share.present()}" for share in lacking)
    may = all(os.access(share.file(), os.W_OK) for share in lacking)
    finding += "; boxd raises it at startup" if may else ": one box can use it up"
    return Check(name, may, finding, remedy=shares.command(lacking), needed=False)


def _users(config: Config) -> Check:
    """Check whether boxes can have user namespaces."""
    name = "user namespaces"
    if config.privileged_boxes:
        finding = "root in a box is root of this host, because of --privileged-boxes"
        remedy = "start without --privileged-boxes"
        return Check(name, ok=False, finding=finding, remedy=remedy, needed=False)
    directory = _existing_parent(config.state_dir)
    try:
        with tempfile.TemporaryDirectory(dir=directory) as place:
            id_maps.require(IdRange(FIRST), Path(place, "disk"), [directory])
            is_mapped = fuse_kernel.maps_ids(Path(place))
    except (Unavailable, OSError) as error:
        return Check(name, ok=False, finding=str(error), remedy=NO_USERS)
    if not is_mapped:
        finding = f"Linux {os.uname().release} cannot map the ids of FUSE, so boxes have no /wrk"
        return Check(name, ok=False, finding=finding, remedy=NO_USERS)
    if not has_patched_binding():
        finding = "the drive cannot be mounted in boxes: pyfuse3 lacks the patch of this release"
        return Check(name, ok=False, finding=finding, remedy="run scripts/pyfuse3", needed=False)
    return Check(name, ok=True, finding="root in a box has no rights on this host")


def has_patched_binding() -> bool:
    """Return whether drives of this installation can be mounted with mapped ids."""
    with suppress(metadata.PackageNotFoundError):
        return "+wrkfs." in metadata.version("pyfuse3")
    return False


def _limits_of_others() -> Check:
    """Check whether boxes with processes of users other than root can be suspended."""
    name = "suspend users"
    if obstacles.may_read_limits():
        return Check(name, ok=True, finding="boxes with processes of any user can be suspended")
    finding = f"{obstacles.LACKS_SYS_RESOURCE}; boxes with processes of other users stay awake"
    remedy = "grant CAP_SYS_RESOURCE to the service (in a container: --cap-add SYS_RESOURCE)"
    return Check(name, ok=False, finding=finding, remedy=remedy, needed=False)


def _sizes() -> Check:
    """Check whether boxes see their own limits in /proc."""
    name = "size of boxes"
    try:
        program = asyncio.run(lxcfs.find())
    except BoxdError as error:
        finding = f"{error}: {lxcfs.CONSEQUENCE}"
        return Check(name, ok=False, finding=finding, remedy=lxcfs.REMEDY, needed=False)
    return Check(
        name, ok=True, finding=f"boxes see their own processors and memory through {program}"
    )


def _cgroups() -> Check:
    """Check the cgroups that limit boxes. Hosts mount them in one of three ways."""
    try:
        layout = cgroups.detect()
    except (Unavailable, OSError) as error:
        remedy = "mount cgroup2 at /sys/fs/cgroup, with the controllers cpu, memory and pids"
        return Check("cgroups", ok=False, finding=str(error), remedy=remedy)
    if cgroups.caps_swap(layout):
        return Check("cgroups", ok=True, finding=f"{layout.mode}; swap of boxes is limited")
    finding = f"{layout.mode}; boxes can use swap beyond their memory limit"
    remedy = "boot with swapaccount=1, or without swap"
    return Check("cgroups", ok=False, finding=finding, remedy=remedy, needed=False)


def _fence() -> Iterator[Check]:
    """Check whether the kernel accepts the rules around boxes, without loading them."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        return  # other checks report it
    try:
        asyncio.run(run("nft", "--check", "-f", "-", stdin=fence.ruleset(fence.SAMPLE)))
    except BoxdError as error:
        remedy = "modprobe nf_tables nft_chain_nat nft_reject_inet nft_connlimit"
        yield Check("network fence", ok=False, finding=str(error), remedy=remedy)
    else:
        yield Check("network fence", ok=True, finding="nftables accepts its rules")


def _image(config: Config) -> Check:
    built = (config.state_dir / "images" / config.default_image / "rootfs").is_dir()
    maker = shutil.which("mmdebstrap")
    if built or maker is not None:
        finding = (
            "built" if built else "will be built at the first start, which takes about a minute"
        )
        return Check(f"image {config.default_image}", ok=True, finding=finding)
    return Check(
        f"image {config.default_image}",
        ok=False,
        finding="not built, and mmdebstrap is missing",
        remedy="apt-get install mmdebstrap",
    )
