"""Fixtures `dockerd` and `docker_host`: a Docker engine of the tests' own, and boxes in it.

`dockerd` (session) is what `scripts/docker` has unpacked, with sockets, data and state in a
directory of its own; it touches neither the host's packet filter nor its bridges, and an engine of
the machine is never asked. When it ends, its containers end with it.

Boxes of these tests run the same stand-in as those of `box_host`, on the same image or on
`busybox_root` (a few MB, imported in no time); commands are run in them by `runc exec` on the
engine's own state, with the box's rights and system call filter.
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
from tests.harness.boxes.backend import STAND_IN, BoxHost
from tests.harness.service.daemon import open_daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        """Where it answers."""
        return self.directory / "sock"

    @property
    def runc_root(self) -> Path:
        """Where its containers are known to runc."""
        return self.directory / "exec" / "runtime-runc" / "moby"

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.directory / "log"

    def start(self) -> None:
        """Starts it and waits until it answers. Fails with what it printed."""
        if not (ROOT / "usr/sbin/dockerd").exists():
            pytest.fail("there is no Docker engine for the tests; run scripts/docker")
        if not os.path.ismount(self.directory):  # in memory: an image is copied and removed quickly
            mount = ["mount", "-t", "tmpfs", "-o", "mode=700", "test", str(self.directory)]
            subprocess.run(mount, check=True)
        (self.directory / "config.json").write_text("{}")
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
        """Signals it and waits for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(STOP_S)
        self.process = None
        if number is signal.SIGKILL:
            # Its containerd died with it, but may stay a zombie where nobody reaps orphans; the
            # next engine would wait for it.
            (self.directory / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def add_image(self, root: Path, name: str, tag: str, *changes: str) -> None:
        """Makes an image of a directory. `changes` are lines of a Dockerfile, such as `USER 7`."""
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
        """Ends what is left of it: processes, mounts, files."""
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
        """The engine's own and the shims of its containers; each names the directory."""
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
    """A running engine, of which nothing is left afterwards."""
    engine = Dockerd(Path(tempfile.mkdtemp(prefix="boxd-docker-")))
    try:
        engine.start()
        yield engine
    finally:
        engine.clear()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """The engine that tests share; who ends it uses `open_dockerd`."""
    with open_dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked root that holds nothing but busybox."""
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
    """A docker backend of a state directory of its own, and the boxes of a test."""

    engine: Dockerd

    @property
    def runc_root(self) -> Path:
        """The engine's."""
        return self.engine.runc_root

    def container(self, box_id: str) -> str:
        """The id of a box's container."""
        return str(self._state(box_id)["ID"])

    def pid(self, box_id: str) -> int:
        """The init's pid on the host."""
        return int(self._state(box_id)["State"]["Pid"])

    def cgroup(self, box_id: str) -> str:
        """The box's cgroup."""
        return f"{self.names.cgroup_parent}/{self.container(box_id)}"

    def leftovers(self) -> list[str]:
        """Also containers and their volumes."""
        containers = [f"container {one['Name']}" for one in self._states() if self._owns(one)]
        volumes = (self.engine.directory / "data/volumes").glob("*/")
        return [*super().leftovers(), *containers, *(f"volume {one.name}" for one in volumes)]

    def _state(self, box_id: str) -> dict[str, Any]:
        (found,) = (one for one in self._states() if one["Name"].endswith(box_id))
        return found

    def _states(self) -> list[dict[str, Any]]:
        """What the engine keeps of its containers."""
        found = []
        for path in (self.engine.directory / "data/containers").glob("*/config.v2.json"):
            with contextlib.suppress(FileNotFoundError):  # just removed
                found.append(json.loads(path.read_text()))
        return found

    def _owns(self, state: dict[str, Any]) -> bool:
        return str(state["Name"]).startswith(f"/boxd-{self.names.instance}-")


@asynccontextmanager
async def open_docker_host(
    engine: Dockerd, state_dir: Path, rootfs: Path, resolv_conf: Path = RESOLV_CONF
) -> AsyncIterator[DockerHost]:
    """A set-up host; afterwards every box is destroyed and nothing of it is left."""
    config = Config(state_dir=state_dir, backend="docker", docker_socket=engine.socket)
    backend = DockerBackend(config, init=STAND_IN, resolv_conf=resolv_conf)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_clear, config)
        stack.push_async_callback(backend.close)
        await backend.setup()
        yield DockerHost(backend, config, rootfs, engine)


async def _clear(config: Config) -> None:
    """By a backend object of its own, whatever state the test left its own in."""
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
    """A docker backend of the test's own, with boxes of busybox."""
    async with open_docker_host(dockerd, tmp_path / "state", busybox_root) as host:
        yield host


@pytest.fixture(scope="module")
def docker_daemon(dockerd: Dockerd, image_rootfs: Path, busybox_root: Path) -> Iterator[Daemon]:
    """A daemon that serves boxes in the engine, by default from an image that only it knows."""
    dockerd.add_image(busybox_root, "test/busybox", "1")
    backend = ["--backend", "docker", "--docker-socket", str(dockerd.socket)]
    with open_daemon(image_rootfs, backend, ["--default-image", "test/busybox:1"]) as made:
        yield made
