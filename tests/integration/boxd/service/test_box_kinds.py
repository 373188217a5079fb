"""Flavors of the operator with another runtime, or with containers in boxes, in a real service."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.boxes import gvisor
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.boxes.dockerd import Dockerd
    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

SIZE = 'description = "x"\ncpus = 1.0\nmem_mb = 512\ndisk_mb = 0\npids = 512\n'
FLAVORS = f"""
[flavors.strong]
{SIZE}runtime = "runsc"
[flavors.absent]
{SIZE}runtime = "kata"
[flavors.inner]
{SIZE}containers = true
[flavors.few]
{SIZE}containers = true
tiers = ["large"]
"""


def with_flavors(daemon: Daemon) -> Daemon:
    """The daemon, started again with the flavors of these tests."""
    daemon.end(signal.SIGTERM)
    (daemon.state / "flavors.toml").write_text(FLAVORS)
    daemon.start()
    return daemon


@pytest.fixture(scope="module")
def on_docker(dockerd: Dockerd, image_rootfs: Path, busybox_root: Path) -> Iterator[Daemon]:
    """A service whose boxes are containers of the engine."""
    dockerd.add_image(busybox_root, "test/busybox", "1")
    backend = ["--backend", "docker", "--docker-socket", str(dockerd.socket)]
    flags = ["--default-image", "test/busybox:1", "--workspace-automount"]
    with open_daemon(image_rootfs, backend, flags) as daemon:
        yield with_flavors(daemon)


@pytest.fixture(scope="module")
def on_runc(image_rootfs: Path) -> Iterator[Daemon]:
    """A service with the default backend."""
    with open_daemon(image_rootfs) as daemon:
        yield with_flavors(daemon)


def info(user: User, box: str) -> dict[str, str]:
    """What `info` shows of a box."""
    lines = user.ssh("cli", f"info {box}").splitlines()
    pairs = (re.split(r":?\s+", line, maxsplit=1) for line in lines)
    return {pair[0]: pair[1] for pair in pairs}


def test_a_box_of_gvisor_serves_sessions_without_a_drive(on_docker: Daemon, tmp_path: Path) -> None:
    gvisor.require()
    user = User(on_docker, tmp_path)
    assert "gvisor" in user.ssh("safe:test/busybox:1:strong", "uname -r; echo kept > /root/file")
    assert user.ssh("safe", "cat /root/file; ls /wrk") == "kept"
    shown = info(user, "safe")
    assert shown["runtime"] == "runsc"
    assert shown["suspend"].startswith("never: the docker backend cannot suspend boxes")
    assert user.boxes()["safe"]["runtime"] == "runsc"
    assert user.boxes()["safe"]["drive"] is False
    error = user.ssh("cli", "suspend safe", status=1)
    assert "cannot suspend boxes" in error
    assert "runtime 'runsc' cannot have /wrk" in user.ssh(
        "safe", "box-guest workspace mount", status=1
    )
    on_docker.end(signal.SIGKILL)
    on_docker.start()
    assert user.ssh("safe", "cat /root/file") == "kept"
    user.ssh("cli", "rm safe")


def test_a_runtime_that_the_engine_lacks_is_refused(on_docker: Daemon, tmp_path: Path) -> None:
    user = User(on_docker, tmp_path)
    assert "has no runtime 'kata'" in user.ssh("x:test/busybox:1:absent", "true", status=255)
    assert "no user namespace of their own" in user.ssh(
        "x:test/busybox:1:inner", "true", status=255
    )
    assert user.boxes() == {}


def test_the_default_backend_has_no_other_runtime(on_runc: Daemon, tmp_path: Path) -> None:
    user = User(on_runc, tmp_path)
    error = user.ssh("x:debian:strong", "true", status=255)
    assert "cannot run boxes with the runtime 'runsc'" in error
    assert "--backend docker" in error
    assert user.boxes() == {}


def test_a_box_with_containers_is_not_suspended_and_says_why(
    on_runc: Daemon, tmp_path: Path
) -> None:
    user = User(on_runc, tmp_path)
    assert user.ssh("nest:debian:inner", "unshare --mount true && echo mounts") == "mounts"
    shown = info(user, "nest")
    assert shown["containers"] == "allowed"
    assert "whose memory cannot be saved" in shown["suspend"]
    error = user.ssh("cli", "suspend nest", status=1)
    assert "suspend is not supported for box nest: its flavor allows containers" in error
    assert user.boxes()["nest"]["state"] == "running"
    before = user.ssh("nest", "cat /proc/sys/kernel/random/boot_id; echo here > /root/file")
    assert before
    on_runc.end(signal.SIGKILL)
    on_runc.start()
    assert user.ssh("nest", "cat /root/file") == "here"
    assert user.boxes()["nest"]["detail"] == ""
    user.ssh("cli", "rm nest")


def test_the_operator_decides_which_tiers_may_use_a_flavor(on_runc: Daemon, tmp_path: Path) -> None:
    user = User(on_runc, tmp_path)
    error = user.ssh("x:debian:few", "true", status=255)
    assert "flavor few is not for your tier (default), only for large" in error
    assert user.boxes() == {}
