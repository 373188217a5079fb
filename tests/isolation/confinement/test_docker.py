"""Boxes of the docker backend: posture, escapes and fence, as boxes of runc are tried.

What differs from runc is in `posture_docker.json`: the engine makes the mounts of /etc/hostname,
/etc/hosts and /etc/resolv.conf, reads what the init prints, and cannot make binds `nosuid`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.boxes import escapes, posture
from tests.harness.boxes.dockerd import open_docker_host
from tests.harness.network import egress_lists, fence
from tests.harness.network import neighbour as beside
from tests.harness.network.fence import PORT, host_listener, neighbour
from tests.harness.network.nameserver import NameServer, serving
from tests.harness.network.neighbour import PRIVATE, in_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.boxes.dockerd import Dockerd, DockerHost
    from tests.harness.network.answers import Answers
    from tests.harness.network.neighbour import Neighbour

__all__ = ["host_listener", "neighbour"]

REVIEWED = Path(__file__).with_name("posture_docker.json")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: the image is imported once."""
    return tmp_path_factory.mktemp("docker") / "state"


@pytest_asyncio.fixture
async def host(dockerd: Dockerd, state_dir: Path, image_rootfs: Path) -> AsyncIterator[DockerHost]:
    """With boxes of the `debian` image."""
    async with open_docker_host(dockerd, state_dir, image_rootfs) as one:
        yield one


async def test_posture_equals_the_reviewed_file(host: DockerHost) -> None:
    seen = await posture.posture_of_a_box(host)
    assert seen == posture.reviewed(REVIEWED), json.dumps(seen, indent=1)


async def test_caps_are_what_was_asked_for(host: DockerHost) -> None:
    await posture.check_caps_are_what_was_asked_for(host)


async def test_open_files_are_limited(host: DockerHost) -> None:
    await posture.check_open_files_are_limited(host)


async def test_memory_is_capped_and_only_the_hog_dies(host: DockerHost) -> None:
    await posture.check_memory_is_capped_and_only_the_hog_dies(host)


async def test_shared_memory_counts_and_is_bounded(host: DockerHost) -> None:
    await posture.check_shared_memory_counts_and_is_bounded(host)


async def test_every_escape_is_refused(host: DockerHost) -> None:
    await escapes.check_every_escape_is_refused(host)


async def test_ordinary_work_is_not_refused(host: DockerHost) -> None:
    await escapes.check_ordinary_work_is_not_refused(host)


async def test_nothing_answers_but_what_the_fence_allows(
    host: DockerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await fence.check_nothing_answers_but_what_the_fence_allows(host, neighbour, host_listener)


async def test_egress_none_reaches_nothing(
    host: DockerHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await fence.check_egress_none_reaches_nothing(host, neighbour, host_listener)


async def test_a_listed_name_is_reached_and_another_is_not(
    dockerd: Dockerd, state_dir: Path, image_rootfs: Path, tmp_path: Path
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {PRIVATE[0]}\n")
    names = NameServer(dict(egress_lists.ZONE))
    with beside.neighbour(PORT, egress_lists.OTHER_PORT) as machine, serving(names):
        in_namespace(machine.name, lambda: names.listen(PRIVATE[0]))
        async with open_docker_host(dockerd, state_dir, image_rootfs, conf) as host:
            lists = egress_lists.ListHost(host, machine, names)
            await egress_lists.check_a_listed_name_is_reached_and_another_is_not(lists)
