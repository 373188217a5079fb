"""Fixtures `image_rootfs` and `box_host`: real boxes on this host.

`image_rootfs` is the catalog's `debian` image. The first run builds it (30 s, 250 MB) and stores it
in `/var/cache/boxd-tests/images` for later runs. A changed recipe causes a new build.

Boxes of these tests run `STAND_IN` instead of the guest agent. It is a shell that acts as init, so
the runtime directory of a box is empty. `runc exec` runs commands in a box with the namespaces,
capabilities and system call filter of the box.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import secrets
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.checkpoint.criu import KEPT, Verdict
from boxd.backends.host.names import HostNames
from boxd.backends.interface import BoxPlan
from boxd.backends.network.host_network import RESOLV_CONF
from boxd.backends.runc.backend import RuncBackend
from boxd.config import Config
from boxd.images.catalog import Catalog
from boxd.images.recipes import load_recipes
from tests.harness.loop import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from boxd.backends.interface import Backend

IMAGES_DIR = Path("/var/cache/boxd-tests/images")
TRIED = IMAGES_DIR.parent / "suspending"
"""The place that stores whether this machine can suspend boxes."""
STAND_IN = ("/bin/sh", "-c", 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done')
"""A shell that reaps children and ends at SIGTERM, as the agent does."""
EXEC_TIMEOUT = 60.0
BOXES_SIZE = 1 << 30
"""Size of the volume for boxes in bytes. The host provides the space while the test runs."""
BUILD_TIMEOUT = 600.0
"""Timeout in seconds of a test that may have to build the image first."""


@dataclass(frozen=True)
class Result:
    """The result of a command in a box."""

    status: int
    out: str
    err: str


@dataclass
class BoxHost:
    """A backend with its own state directory, and the boxes of one test."""

    backend: Backend
    config: Config
    rootfs: Path

    @property
    def names(self) -> HostNames:
        """Return the names of the host objects."""
        return HostNames(self.config.instance, self.config.state_dir.resolve())

    def plan(self, **changes: object) -> BoxPlan:
        """Return a plan of a new box with a random id; `changes` replace fields."""
        box_id = str(changes.pop("box_id", secrets.token_hex(16)))
        run_dir = self.config.state_dir / "boxes" / box_id / "run"
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir.parent / "runtime").mkdir(exist_ok=True)
        plan = BoxPlan(
            box_id=box_id,
            hostname="testbox",
            image="test",
            rootfs=self.rootfs,
            runtime=run_dir.parent / "runtime",
            run_dir=run_dir,
            cpus=1.0,
            mem_mb=256,
            pids=128,
            egress="all",
        )
        return replace(plan, **changes)  # type: ignore[arg-type]  # the names are the caller's

    async def box(self, **changes: object) -> str:
        """Create and start a box; return its id."""
        plan = self.plan(**changes)
        await self.backend.create(plan)
        await self.backend.start(plan.box_id)
        return plan.box_id

    @property
    def program(self) -> str:
        """Return the OCI runtime of the boxes."""
        return "runc"

    @property
    def runc_root(self) -> Path:
        """Return the state directory of runc."""
        return self.names.runc_root

    def container(self, box_id: str) -> str:
        """Return the name of a box's container in runc."""
        return box_id

    def cgroup(self, box_id: str) -> str:
        """Return the box's cgroup, which is the same in every hierarchy."""
        return self.names.cgroup(box_id)

    def pid(self, box_id: str) -> int:
        """Return the host's pid of the box's init."""
        return int(self.names.paths(box_id).pid.read_text())

    def address(self, box_id: str) -> str:
        """Return the box's IPv4 address."""
        record = json.loads(self.names.paths(box_id).record.read_text())
        subnet = (self.names.boxes_dir / "subnet").read_text().strip()
        first, second, *_ = subnet.split(".")
        third, fourth = divmod(record["slot"] * 4 + 2, 256)
        return f"{first}.{second}.{third}.{fourth}"

    async def run(self, box_id: str, *argv: str, stdin: bytes = b"") -> Result:
        """Run a command in the box with the runtime: same namespaces, capabilities and filter."""
        process = await asyncio.create_subprocess_exec(
            *(self.program, "--root", str(self.runc_root), "exec", self.container(box_id), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(EXEC_TIMEOUT):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        status = process.returncode if process.returncode is not None else -1
        return Result(status, out.decode(errors="replace"), err.decode(errors="replace"))

    async def python(self, box_id: str, program: str) -> Result:
        """Run a Python program in a box of the `debian` image."""
        return await self.run(box_id, "/usr/bin/python3", "-I", "-c", program)

    def leftovers(self) -> list[str]:
        """Return all host objects of this installation's boxes, one a line."""
        names = self.names
        mine = (f"{names.boxes_dir}/", f"{names.lxcfs}/", f"{names.mounts}/")
        found = [
            f"mount {line.split()[4]}"
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if line.split()[4].startswith(mine)
        ]
        found += [f"netns {p.name}" for p in Path("/run/netns").glob(f"boxd-{names.instance}-*")]
        found += [f"link {p.name}" for p in Path("/sys/class/net").glob(f"{names.link_prefix}*")]
        found += [f"cgroup {path}" for path in self._cgroups()]
        found += [f"container {p.name}" for p in names.runc_root.glob("*")]
        found += [f"directory {p.name}" for p in names.boxes_dir.glob("*/")]
        found += [f"lxcfs {p.name}" for p in names.lxcfs.glob("*")]
        found += [f"mounts {p.name}" for p in names.mounts.glob("*")]
        return found

    def _cgroups(self) -> list[str]:
        top = Path("/sys/fs/cgroup")
        parent = self.names.cgroup_parent.strip("/")
        roots = itertools.chain([top], (p for p in top.iterdir() if p.is_dir()))
        return [
            str(child)
            for root in roots
            if (root / parent).is_dir()
            for child in (root / parent).iterdir()
            if child.is_dir()
        ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the timeout of tests that may have to build the image."""
    for item in items:
        names = {"image_rootfs", "containers_rootfs"} & set(getattr(item, "fixturenames", ()))
        if names and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT))


@pytest.fixture(scope="session")
def image_rootfs() -> Path:
    """Return the root of the `debian` image. Tests never write to it."""
    return _built("debian")


@pytest.fixture(scope="session")
def containers_rootfs() -> Path:
    """Return the root of the `containers` image (500 MB), which has Docker."""
    return _built("containers")


def _built(name: str) -> Path:
    """Return the root of an image of the catalog. Build it if no run has built it."""
    IMAGES_DIR.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(IMAGES_DIR)
    digest = load_recipes().by_name[name].digest
    with (IMAGES_DIR / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test workers share the directory
        if not catalog.is_built(name) or not catalog.rootfs(name).name.startswith(digest):
            run(catalog.build(name, lambda _: None))
        return catalog.rootfs(name)


async def untried(state_dir: Path) -> Verdict:
    """Report that these boxes cannot be suspended, without a trial."""
    del state_dir
    return Verdict(None, "boxes cannot suspend here: it was not tried")


def tell_verdict(state_dir: Path) -> None:
    """Copy the verdict of earlier runs into a new state directory, so a service needs no trial."""
    kept = TRIED / KEPT
    if kept.exists():
        shutil.copyfile(kept, state_dir / KEPT)


@asynccontextmanager
async def open_box_host(
    state_dir: Path,
    rootfs: Path,
    resolv_conf: Path = RESOLV_CONF,
    judge: Callable[[Path], Awaitable[Verdict]] = untried,
    boxes_size: int | None = BOXES_SIZE,
) -> AsyncIterator[BoxHost]:
    """Yield a prepared host. The end of the context destroys every box and checks for leftovers.

    `judge` reports whether the host can suspend boxes.
    """
    config = Config(state_dir=state_dir, boxes_size=boxes_size)
    backend = RuncBackend(config, init=STAND_IN, resolv_conf=resolv_conf, judge=judge)
    host = BoxHost(backend, config, rootfs)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_clear, config)
        stack.push_async_callback(backend.close)
        await backend.setup()
        yield host


async def _clear(config: Config) -> None:
    """Destroy all boxes with a new backend object, whatever the state of the test's own one."""
    backend = RuncBackend(config, init=STAND_IN, judge=untried)
    await backend.setup()
    for box in await backend.list():
        await backend.destroy(box.box_id)
    await backend.close()
    # Pytest deletes the files of tests only after the run, and a volume takes its whole size.
    (config.state_dir / "disks.img").unlink(missing_ok=True)


@pytest_asyncio.fixture
async def box_host(tmp_path: Path, image_rootfs: Path) -> AsyncIterator[BoxHost]:
    """Yield a runc backend for one test, with boxes of the `debian` image."""
    async with open_box_host(tmp_path / "state", image_rootfs) as host:
        yield host
