"""What a box can do to the memory of the host beside its memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import obstacles
from boxd.backends.host import cgroups
from boxd.backends.oci.bundle import MIB, OOM_SCORE_ADJ
from boxd.backends.runc.containers import TCP_SHARE
from tests.harness.boxes.lives import WAYS

if TYPE_CHECKING:
    from tests.harness.boxes.backend import BoxHost
    from tests.harness.boxes.lives import Way
    from tests.harness.boxes.suspending import Sleepy

LOWERS = """
from pathlib import Path
file = Path("/proc/1/oom_score_adj")
try:
    file.write_text("0")
except PermissionError:
    pass
print(file.read_text())
"""
QUEUES = """
import resource, socket
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
server = socket.create_server(("127.0.0.1", 0))
held, queued = [server], 0
for _ in range(400):
    client = socket.create_connection(server.getsockname())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    held += [client, server.accept()[0]]
    client.setblocking(False)
    try:
        while True:
            queued += client.send(bytes(1 << 16))
    except BlockingIOError:
        pass
print(queued)
"""
MEM_MB = 128


def least() -> int:
    """Return the lowest preference that a box can have.

    The kernel keeps a minimum only if root of the host has CAP_SYS_RESOURCE. Without it, this file
    proves nothing about the minimum.
    """
    return OOM_SCORE_ADJ if obstacles.may_read_limits() else 0


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_restored_box_cannot_lower_its_preference_to_be_killed(
    sleepy: Sleepy, way: Way
) -> None:
    guest = await way(sleepy)
    result = await sleepy.host.python(guest.box, LOWERS)
    assert int(result.out) == least(), result.err


async def test_a_new_box_cannot_lower_its_preference_to_be_killed(box_host: BoxHost) -> None:
    result = await box_host.python(await box_host.box(), LOWERS)
    assert int(result.out) == least(), result.err


async def test_unread_data_of_tcp_has_a_limit(box_host: BoxHost) -> None:
    """With cgroup v2, the memory limit includes it."""
    box = await box_host.box(mem_mb=MEM_MB)
    result = await box_host.python(box, QUEUES)
    layout = cgroups.detect()
    if layout.mode is cgroups.Mode.V2:
        return
    directory = layout.directory("memory", box_host.names.cgroup(box))
    limit = int((directory / "memory.kmem.tcp.limit_in_bytes").read_text())
    assert limit == MEM_MB * MIB // TCP_SHARE
    most = int((directory / "memory.kmem.tcp.max_usage_in_bytes").read_text())
    assert 0 < most < 2 * limit, "the kernel lets each socket exceed the limit a little"
    assert int(result.out) < 2 * limit
