"""Docker in boxes whose flavor allows containers: it works, and the box still holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.host import processes
from boxd.backends.oci import inner_containers
from tests.harness.boxes import escapes, posture
from tests.harness.boxes.backend import BoxHost, Result, open_box_host
from tests.harness.network import fence
from tests.harness.network.fence import PORT, both, host_listener, neighbour
from tests.harness.network.neighbour import HOST_SIDE, PUBLIC
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.network.answers import Answers
    from tests.harness.network.neighbour import Neighbour
    from tests.plugins.strict_logs import AssertLogs

__all__ = ["host_listener", "neighbour"]

pytestmark = pytest.mark.timeout(600)

REVIEWED = Path(__file__).with_name("posture_containers.json")
MIB = 1024 * 1024
START = """
dockerd >/var/log/dockerd 2>&1 </dev/null &
timeout 60 sh -c 'until docker version >/dev/null 2>&1; do sleep 0.1; done' || cat /var/log/dockerd
mkdir -p /tmp/inner/usr && cd /tmp/inner && ln -s usr/bin usr/sbin usr/lib usr/lib64 .
tar -c . | docker import - inner
"""
"""Starts Docker, and imports an image whose programs are those of the box."""
RUN = ("docker", "run", "--rm", "-i", "-v", "/usr:/usr:ro")
NAMESPACES = """
import ctypes, os
files = []
while len(files) < 600 and ctypes.CDLL(None).unshare(0x40000000) == 0:
    files.append(os.open("/proc/self/ns/net", os.O_RDONLY))
print(len(files))
"""
"""Creates network namespaces until the kernel refuses one."""
HOG = f"x = bytearray(900 * {MIB}); print('got it')"
OF_THE_FLAVOR: frozenset[str] = frozenset(
    {
        "32_bit_entry",
        "call_fsmount",
        "call_sethostname",
        "clone_cgroup",
        "clone_ipc",
        "clone_mnt",
        "clone_net",
        "clone_pid",
        "clone_uts",
        "enter_namespaces",
        "gain_capability",
        "host_devices",
        "leave_cgroup",
        "make_cgroup",
        "mount_bind",
        "mount_proc",
        "mount_setattr",
        "move_mount",
        "netfilter_socket",
        "new_mount_api",
        "open_tree",
        "pivot_root",
        "raw_socket",
        "set_address",
        "sysctl_network",
        "unshare_cgroup",
        "unshare_ipc",
        "unshare_mnt",
        "unshare_net",
        "unshare_pid",
        "unshare_uts",
    }
)
"""Attempts that succeed by design. They change only objects of the box's own namespaces. The device
is /dev/fuse, and the cgroup that it joins is the box's own."""


@dataclass
class InnerHost(BoxHost):
    """A host whose boxes run Docker. Python programs run in containers of Docker."""

    async def box(self, **changes: object) -> str:
        """Create a box and start Docker in it."""
        box = await super().box(**{"containers": True, "mem_mb": 768, "pids": 512, **changes})
        started = await super().run(box, "bash", "-c", START)
        assert started.status == 0, started.out + started.err
        return box

    async def run(self, box_id: str, *argv: str, stdin: bytes = b"") -> Result:
        """Run a command in the box, or in a container if it is a Python program."""
        inner = (*RUN, "inner") if "python3" in argv[0] else ()
        return await super().run(box_id, *inner, *argv, stdin=stdin)


@pytest_asyncio.fixture
async def host(tmp_path: Path, containers_rootfs: Path) -> AsyncIterator[InnerHost]:
    """With boxes of the `containers` image, in which Docker runs."""
    async with open_box_host(tmp_path / "state", containers_rootfs) as one:
        yield InnerHost(one.backend, one.config, one.rootfs)


async def test_a_container_runs_and_its_limits_end_at_those_of_the_box(host: InnerHost) -> None:
    box = await host.box()
    limits = posture.caps(host, box)
    hello = await host.python(box, "import os; print(os.getpid(), os.uname().nodename)")
    assert hello.status == 0, hello.err
    assert hello.out.split()[0] == "1"
    for memory in ("64m", "8g"):
        words = (*RUN, "--memory", memory, "inner", "/usr/bin/python3", "-c", HOG)
        assert (await host.run(box, *words)).status == 137
    count = "import time; [__import__('subprocess').Popen(['sleep', '99']) for _ in range(900)]"
    assert (await host.python(box, count)).status != 0
    assert (await host.run(box, "docker", "version")).status == 0
    assert posture.caps(host, box) == limits
    detached = ("docker", "run", "-d", *RUN[3:], "inner", "/usr/bin/sleep", "9999")
    assert (await host.run(box, *detached)).status == 0
    await host.backend.stop(box)
    assert [x for x in host.leftovers() if not x.startswith("directory")] == []
    await host.backend.start(box)
    assert (await host.run(box, "docker", "--version")).status == 0
    await host.backend.destroy(box)
    assert host.leftovers() == []


async def test_the_fence_holds_for_containers(
    host: InnerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await fence.check_nothing_answers_but_what_the_fence_allows(host, neighbour, host_listener)


async def test_root_of_the_network_cannot_change_the_fence(
    host: InnerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    """It may set any address, route and rule in the box. None of them changes the host's."""
    box, other = await BoxHost.box(host, containers=True), await BoxHost.box(host)
    outside = both([PUBLIC], PORT)
    assert await fence.probe(_plain(host), box, outside) == ["answered", "answered"]
    heard = len(neighbour.answers.heard)
    stolen = host.address(other)
    for command in (
        "iptables --flush && iptables --table nat --flush && iptables --policy FORWARD ACCEPT",
        "sysctl -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0",
        "ip -6 address add fd00::2/64 dev eth0 && ip -6 route add default dev eth0",
        f"ip address add {stolen}/32 dev eth0",
        f"ip route change $(ip route show default) src {stolen}",
    ):
        done = await host.run(box, "bash", "-c", command)
        assert done.status == 0, f"{command}: {done.err}"
    denied = both([HOST_SIDE, *fence.host_addresses()[1:]], PORT)
    targets = [*outside, *denied, ("tcp", "fd00::1", PORT)]
    assert "answered" not in await fence.probe(_plain(host), box, targets)
    assert len(neighbour.answers.heard) == heard
    assert host_listener.heard == []


def _plain(host: BoxHost) -> BoxHost:
    return BoxHost(host.backend, host.config, host.rootfs)


async def test_posture_equals_the_reviewed_file(host: InnerHost) -> None:
    seen = await posture.posture_of_a_box(_plain(host), containers=True)
    assert seen == posture.reviewed(REVIEWED), json.dumps(seen, indent=1)


async def test_every_escape_is_refused(host: InnerHost) -> None:
    """What the flavor allows changes neither limits of the box nor settings of the host."""
    plain = _plain(host)
    box = await plain.box(containers=True)
    settings = [Path("/proc/sys/kernel", name) for name in ("core_pattern", "hostname")]
    before = [path.read_text() for path in settings]
    limits = posture.caps(host, box)
    succeeded = await escapes.tried(plain, box)
    assert succeeded.keys() - OF_THE_FLAVOR == set(), " ".join(sorted(succeeded))
    assert [path.read_text() for path in settings] == before
    assert posture.caps(host, box) == limits


async def test_ordinary_work_is_not_refused(host: InnerHost) -> None:
    await escapes.check_ordinary_work_is_not_refused(_plain(host))


async def test_kernel_objects_are_bounded(host: InnerHost, assert_logs: AssertLogs) -> None:
    """Their memory does not count in the box: namespaces are refused, cgroups end the box."""
    plain = _plain(host)
    box = await plain.box(containers=True, pids=256)
    result = await plain.python(box, NAMESPACES)
    assert int(result.out) <= inner_containers.MOST_NAMESPACES, result
    raised = await plain.run(box, "sh", "-c", "echo 9999 > /proc/sys/user/max_net_namespaces")
    assert raised.status != 0
    with assert_logs("too many cgroups"):
        count = inner_containers.MOST_CGROUPS + 100
        make = f"import os; [os.mkdir(f'/sys/fs/cgroup/pids/x{{i}}') for i in range({count})]"
        await plain.python(box, make)
        init = (host.names.paths(box).pid, host.names.cgroup(box))
        await until(lambda: not processes.runs(*init))
