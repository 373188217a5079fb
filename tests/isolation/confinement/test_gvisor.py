"""Boxes with a runtime that is not runc: those of gVisor in the docker backend."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import pytest_asyncio

from tests.harness.boxes import escapes, gvisor, posture
from tests.harness.boxes.dockerd import open_docker_host
from tests.harness.network import fence
from tests.harness.network.fence import host_listener, neighbour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.boxes.dockerd import Dockerd, DockerHost
    from tests.harness.network.answers import Answers
    from tests.harness.network.neighbour import Neighbour

__all__ = ["host_listener", "neighbour"]

REVIEWED = Path(__file__).with_name("posture_runsc.json")
EMULATED: frozenset[str] = frozenset(
    {
        "call_clone3",
        "call_open_by_handle_at",
        "call_perf_event_open",
        "cgroup_limits",
        "clone_mnt",
        "clone_net",
        "clone_user",
        "host_devices",
        "kernel_messages",
        "leave_cgroup",
        "make_cgroup",
        "unshare_cgroup",
        "unshare_net",
        "unshare_pid",
        "unshare_user",
    }
)
"""Attempts that succeed in gVisor: its own kernel answers them, with objects of its own. It applies
no system call filter of the service, because it ignores the error codes of one, and libraries
need them."""
IN_BOX = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: the image is imported once."""
    gvisor.require()
    return tmp_path_factory.mktemp("gvisor") / "state"


@pytest_asyncio.fixture
async def host(state_dir: Path, dockerd: Dockerd, image_rootfs: Path) -> AsyncIterator[DockerHost]:
    """With boxes of the `debian` image."""
    async with open_docker_host(
        dockerd, state_dir, image_rootfs, oci_runtime=gvisor.RUNTIME
    ) as one:
        yield one


async def test_posture_equals_the_reviewed_file(host: DockerHost) -> None:
    """On the host: the processes of gVisor. In the box: a command, and its mounts."""
    box = await host.box(mem_mb=512)
    kernel = psutil.Process(host.pid(box))
    siblings = psutil.Process(kernel.ppid()).children()
    files = next(process for process in siblings if "gofer" in process.cmdline()[0])
    inside = (await host.run(box, "cat", "/proc/self/status")).out.splitlines()
    status = dict(line.split(":\t", 1) for line in inside if ":\t" in line)
    mounts = (await host.run(box, "cat", "/proc/self/mounts")).out.splitlines()
    devices = (await host.run(box, "ls", "/dev")).out.split()
    seen = {
        "kernel": _on_host(kernel.pid),
        "files": _on_host(files.pid),
        "command": {key: status[key] for key in IN_BOX},
        "mounts": sorted(map(_told, mounts)),
        "devices": sorted(devices),
    }
    assert seen == json.loads(REVIEWED.read_text()), json.dumps(seen, indent=1)


def _on_host(pid: int) -> dict[str, Any]:
    """The rights of a process of gVisor, without those descriptors that its version decides."""
    process = posture.of_process(pid)
    del process["descriptors"]
    # Where its root directory leads: an empty directory, and not the host's.
    return process | {"root": sorted(os.listdir(f"/proc/{pid}/root"))}


def _told(line: str) -> str:
    _, place, kind, options, *_ = line.split()
    strict = {"ro", "nosuid", "nodev", "noexec"}
    return " ".join([place, kind, *sorted(strict & set(options.split(",")))])


async def test_caps_are_what_was_asked_for(host: DockerHost) -> None:
    await posture.check_caps_are_what_was_asked_for(host)


async def test_memory_is_capped(host: DockerHost) -> None:
    box, other = await host.box(mem_mb=128), await host.box(mem_mb=512)
    hog = "x = bytearray(300 * 1024 * 1024)"
    assert (await host.python(box, hog)).status != 0
    assert (await host.python(other, hog)).status == 0


async def test_every_escape_is_refused(host: DockerHost) -> None:
    """What gVisor allows changes only its own kernel, and no limit of the box on the host."""
    box = await host.box(mem_mb=512)
    limits = posture.caps(host, box)
    succeeded = await escapes.tried(host, box)
    assert succeeded.keys() - EMULATED == set(), " ".join(sorted(succeeded))
    assert posture.caps(host, box) == limits


async def test_ordinary_work_is_not_refused(host: DockerHost) -> None:
    """Except for `ping`, for which gVisor needs CAP_NET_RAW."""
    await escapes.check_ordinary_work_is_not_refused(host, but=("ping",))


async def test_nothing_answers_but_what_the_fence_allows(
    host: DockerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await fence.check_nothing_answers_but_what_the_fence_allows(host, neighbour, host_listener)


async def test_egress_none_reaches_nothing(
    host: DockerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await fence.check_egress_none_reaches_nothing(host, neighbour, host_listener)
