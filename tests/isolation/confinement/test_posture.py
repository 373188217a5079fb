"""The whole posture of a box, compared with the reviewed file `posture_runc.json`; and its caps.

Every mount of the box is in it. What depends on the host is evened out before:

- hierarchies of cgroup v1 are one line, as hosts mount different ones; v2 has none of them;
- mounts over paths that this kernel lacks are taken out of the reviewed list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from boxd.backends.host import cgroups
from tests.harness.boxes.posture import (
    check_caps_are_what_was_asked_for,
    check_memory_is_capped_and_only_the_hog_dies,
    check_open_files_are_limited,
    check_shared_memory_counts_and_is_bounded,
    posture_of_a_box,
    reviewed,
)

if TYPE_CHECKING:
    from tests.harness.boxes.backend import BoxHost


async def test_posture_equals_the_reviewed_file(box_host: BoxHost) -> None:
    seen = await posture_of_a_box(box_host)
    assert seen == reviewed(), json.dumps(seen, indent=1)


async def test_open_files_are_limited(box_host: BoxHost) -> None:
    await check_open_files_are_limited(box_host)


async def test_processes_are_capped(box_host: BoxHost) -> None:
    box, other = await box_host.box(pids=32), await box_host.box()
    program = (
        "import os\n"
        "made = 0\n"
        "end, begin = os.pipe()\n"
        "try:\n"
        "    for _ in range(200):\n"
        "        if os.fork() == 0:\n"
        "            os.close(begin)\n"
        "            os.read(end, 1)\n"
        "            os._exit(0)\n"
        "        made += 1\n"
        "except BlockingIOError:\n"
        "    pass\n"
        "os.close(begin)\n"
        "for _ in range(made):\n"  # nobody else may be quick enough to reap them
        "    os.wait()\n"
        "print(made)\n"
    )
    made = int((await box_host.python(box, program)).out)
    assert 0 < made < 32
    assert (await box_host.run(other, "true")).status == 0
    assert (await box_host.run(box, "true")).status == 0


async def test_memory_is_capped_and_only_the_hog_dies(box_host: BoxHost) -> None:
    await check_memory_is_capped_and_only_the_hog_dies(box_host)


async def test_shared_memory_counts_and_is_bounded(box_host: BoxHost) -> None:
    await check_shared_memory_counts_and_is_bounded(box_host)


async def test_cpu_is_capped(box_host: BoxHost) -> None:
    """The kernel throttles a spinning box of a tenth of a CPU."""
    box = await box_host.box(cpus=0.1)
    spin = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    assert (await box_host.python(box, spin)).status == 0
    stat = cgroups.detect().directory("cpu", box_host.cgroup(box)) / "cpu.stat"
    throttled = dict(line.split() for line in stat.read_text().splitlines())
    assert int(throttled["nr_throttled"]) > 0


async def test_caps_are_what_was_asked_for(box_host: BoxHost) -> None:
    await check_caps_are_what_was_asked_for(box_host)
