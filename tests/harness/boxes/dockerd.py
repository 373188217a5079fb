"""Fixtures `dockerd` and `docker_host`: a private Docker engine for tests, and boxes in it.

`dockerd` (scope: session) runs the engine that `scripts/docker` unpacks. The engine has its own
sockets, data and state in one directory. It changes neither the packet filter nor the bridges of
the host, and tests never use an engine of the machine. The containers end with the engine.

Boxes of these tests run the same stand-in as those of `box_host`. They use the same image, or
`busybox_root`, which has a few MB and imports quickly. `runc exec` runs commands on the engine's
own state, with the capabilities and system call filter of the box.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from boxd.backends.docker.backend import DockerBackend
from boxd.backends.network.host_network import RESOLV_CONF
from boxd.config import Config
from tests.harness.boxes import gvisor
from tests.harness.boxes.backend import STAND_IN, BoxHost
from tests.harness.service.daemon import open_daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from boxd.backends.interface import BoxPlan
    from tests.harness.service.daemon import Daemon

ROOT = Path(__file__).parents[3] / ".build" / "docker" / "root"
START_S = 60.0
STOP_S = 60.0


@dataclass
class Dockerd:
    """One engine: its directory and, while it runs, its process."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Return the path of the engine's socket."""
        return self.directory / "sock"

    @property
    def runc_root(self) -> Path:
        """Return the state directory of the engine's runc."""
        return self.directory / "exec" / "runtime-runc" / "moby"

    @property
    def log(self) -> Path:
        """Return the path of the engine's log."""
        return self.directory / "log"

    def start(self) -> None:
        """Start the engine and wait until it answers. A failure shows the log."""
        if not (ROOT / "usr/sbin/dockerd").exists():
            pytest.fail("there is no Docker engine for the tests; run scripts/docker")
        # A file system in memory imports and removes images quickly.
        if not os.path.ismount(self.directory):
            mount = ["mount", "-t", "tmpfs", "-o", "mode=700", "test", str(self.directory)]
            subprocess.run(mount, check=True)
        (self.directory / "config.json").write_text(json.dumps({"runtimes": gvisor.runtimes()}))
        programs = f"{ROOT}/usr/sbin:{ROOT}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        libraries = ":".join(str(path) for path in (ROOT / "lib").glob("*-linux-gnu"))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(ROOT / "usr/sbin/dockerd", "--host", f"unix://{self.socket}"),
                    *("--config-file", self.directory / "config.json", "--group", "root"),
                    *("--data-root", f"{self.directory}/data"),
                    *("--exec-root", f"{self.directory}/exec"),
                    *("--pidfile", self.directory / "pid", "--bridge=none", "--iptables=false"),
                    *("--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
                    *("--userland-proxy=false", "--shutdown-timeout=1", "--log-level=warn"),
                    *("--exec-opt", "native.cgroupdriver=cgroupfs"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": programs, "LD_LIBRARY_PATH": libraries},
                start_new_session=True,
            )
        ping = ["curl", "-fsS", "--unix-socket", str(self.socket), "http://engine/_ping"]
        deadline = time.monotonic() + START_S
        while subprocess.run(ping, capture_output=True, check=False).returncode != 0:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the engine and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(STOP_S)
        self.process = None
        if number is signal.SIGKILL:
            # The engine's containerd died with it, but stays a zombie if no process reaps orphans.
            # The next engine would wait for it.
            (self.directory / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def add_image(self, root: Path, name: str, tag: str, *changes: str) -> None:
        """Make an image from a directory. `changes` are lines of a Dockerfile, such as `USER 7`."""
        query = [("fromSrc", "-"), ("repo", name), ("tag", tag), *(("changes", c) for c in changes)]
        packed = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True)
        answer = subprocess.run(
            [
                *("curl", "-fsS", "--unix-socket", str(self.socket), "--data-binary", "@-"),
                *("-H", "Content-Type: application/x-tar"),
                f"http://engine/images/create?{urlencode(query)}",
            ],
            input=packed.stdout,
            check=True,
            capture_output=True,
        )
        assert b"error" not in answer.stdout, answer.stdout

    def clear(self) -> None:
        """Remove the engine's remaining processes, mounts and files."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.end()
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        places = [line.split()[4] for line in mounts]
        below = (place for place in places if f"{place}/".startswith(f"{self.directory}/"))
        for place in sorted(below, reverse=True):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        shutil.rmtree(self.directory)

    def _processes(self) -> list[int]:
        """Return the pids of the engine and of its containers' shims; each names the directory."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                own = any(name in words[0] for name in ("dockerd", "containerd"))
                if own and any(str(self.directory) in word for word in words):
                    found.append(int(entry.name))
        return sorted(found)


@contextlib.contextmanager
def open_dockerd() -> Iterator[Dockerd]:
    """Yield a running engine. The end of the context removes all of it."""
    engine = Dockerd(Path(tempfile.mkdtemp(prefix="boxd-docker-")))
    try:
        engine.start()
        yield engine
    finally:
        engine.clear()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """Yield the engine that tests share. A test that stops its engine uses `open_dockerd`."""
    with open_dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unpacked root that contains only busybox."""
    root = tmp_path_factory.mktemp("busybox") / "busybox-root"
    for name in ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "wrk"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    listing = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True)
    for name in listing.stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    return root


@dataclass
class DockerHost(BoxHost):
    """A docker backend with its own state directory, and the boxes of one test."""

    engine: Dockerd
    oci_runtime: str = ""

    def plan(self, **changes: object) -> BoxPlan:
        """Return a plan of a new box with the runtime of this host."""
        return super().plan(**{"oci_runtime": self.oci_runtime, **changes})

    @property
    def program(self) -> str:
        """Return the path of the OCI runtime."""
        return str(gvisor.RUNSC) if self.oci_runtime else super().program

    @property
    def runc_root(self) -> Path:
        """Return the state directory of the engine's runc."""
        return self.engine.runc_root

    def container(self, box_id: str) -> str:
        """Return the id of a box's container."""
        return str(self._state(box_id)["ID"])

    def pid(self, box_id: str) -> int:
        """Return the host's pid of the box's init."""
        return int(self._state(box_id)["State"]["Pid"])

    def cgroup(self, box_id: str) -> str:
        """Return the box's cgroup."""
        return f"{self.names.cgroup_parent}/{self.container(box_id)}"

    def leftovers(self) -> list[str]:
        """Return all remaining host objects, including containers and their volumes."""
        containers = [f"container {one['Name']}" for one in self._states() if self._owns(one)]
        volumes = (self.engine.directory / "data/volumes").glob("*/")
        return [*super().leftovers(), *containers, *(f"volume {one.name}" for one in volumes)]

    def _state(self, box_id: str) -> dict[str, Any]:
        (found,) = (one for one in self._states() if one["Name"].endswith(box_id))
        return found

    def _states(self) -> list[dict[str, Any]]:
        """Return the engine's records of its containers."""
        found = []
        for path in (self.engine.directory / "data/containers").glob("*/config.v2.json"):
            # The engine may remove a container meanwhile.
            with contextlib.suppress(FileNotFoundError):
                found.append(json.loads(path.read_text()))
        return found

    def _owns(self, state: dict[str, Any]) -> bool:
        return str(state["Name"]).startswith(f"/boxd-{self.names.instance}-")


@asynccontextmanager
async def open_docker_host(
    engine: Dockerd,
    state_dir: Path,
    rootfs: Path,
    resolv_conf: Path = RESOLV_CONF,
    oci_runtime: str = "",
) -> AsyncIterator[DockerHost]:
    """Yield a prepared host. The end of the context destroys every box and checks for leftovers."""
    config = Config(state_dir=state_dir, backend="docker", docker_socket=engine.socket)
    backend = DockerBackend(config, init=STAND_IN, resolv_conf=resolv_conf)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_clear, config)
        stack.push_async_callback(backend.close)
        await backend.setup()
        yield DockerHost(backend, config, rootfs, engine, oci_runtime)


async def _clear(config: Config) -> None:
    """Destroy all boxes with a new backend object, whatever the state of the test's own one."""
    backend = DockerBackend(config, init=STAND_IN)
    try:
        await backend.setup()
        for box in await backend.list():
            await backend.destroy(box.box_id)
    finally:
        await backend.close()


@pytest_asyncio.fixture
async def docker_host(
    dockerd: Dockerd, tmp_path: Path, busybox_root: Path
) -> AsyncIterator[DockerHost]:
    """Yield a docker backend for one test, with boxes of busybox."""
    async with open_docker_host(dockerd, tmp_path / "state", busybox_root) as host:
        yield host


@pytest.fixture(scope="module")
def docker_daemon(dockerd: Dockerd, image_rootfs: Path, busybox_root: Path) -> Iterator[Daemon]:
    """Yield a daemon that serves boxes in the engine.

    Its default image exists only in the engine.
    """
    dockerd.add_image(busybox_root, "test/busybox", "1")
    backend = ["--backend", "docker", "--docker-socket", str(dockerd.socket)]
    with open_daemon(image_rootfs, backend, ["--default-image", "test/busybox:1"]) as made:
        yield made
