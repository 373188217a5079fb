"""Checks of the host, on state directories that are as they should be and as they should not."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd import doctor
from boxd.backends.host import cgroups, fuse_kernel
from boxd.backends.host.names import HostNames
from boxd.backends.host.run import run
from boxd.backends.network import fence
from boxd.backends.oci import lxcfs
from boxd.config import Address, Config
from boxd.embedded.statedir import lock_holder
from boxd.errors import Unavailable
from boxd.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration on a private, empty state directory."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return Config(state_dir=state, ssh_addr=Address("127.0.0.1", 0))


def found(config: Config, name: str) -> doctor.Check:
    """The check of that name."""
    [check] = [one for one in doctor.checks(config) if one.name == name]
    return check


def test_this_host_passes(config: Config) -> None:
    assert [check for check in doctor.checks(config) if check.needed and not check.ok] == []
    assert list(config.state_dir.iterdir()) == []


def test_every_failure_names_a_remedy(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(config.state_dir))
    failing = [check for check in doctor.checks(config) if not check.ok]
    assert {"runc", "ip", "nft", "image debian"} <= {check.name for check in failing}
    assert all(check.remedy for check in failing)


def test_boxes_without_lxcfs_are_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(config, "size of boxes").ok

    async def absent() -> Path:
        raise Unavailable("lxcfs is not installed")

    monkeypatch.setattr(lxcfs, "find", absent)
    check = found(config, "size of boxes")
    assert (check.ok, check.needed) == (False, False)
    assert "lxcfs is not installed: boxes see the processors" in check.finding
    assert "scripts/lxcfs" in check.remedy


def test_a_kernel_without_id_maps_of_fuse_is_refused(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse_kernel, "maps_ids", lambda _: False)
    check = found(config, "user namespaces")
    assert (check.ok, check.needed) == (False, True)
    assert "cannot map the ids of FUSE" in check.finding
    assert "Linux 6.12 or newer" in check.remedy
    assert found(replace(config, privileged_boxes=True), "user namespaces").needed is False


def test_state_directory_open_to_others(config: Config) -> None:
    config.state_dir.chmod(0o755)
    check = found(config, "state directory")
    assert not check.ok
    assert f"chmod 700 {config.state_dir}" in check.remedy


def test_absent_state_directory_is_fine(config: Config) -> None:
    absent = replace(config, state_dir=config.state_dir / "a" / "b")
    assert found(absent, "state directory").ok
    assert not absent.state_dir.exists()


def test_state_directory_that_is_a_file(config: Config) -> None:
    file = config.state_dir / "file"
    file.touch()
    assert not found(replace(config, state_dir=file), "state directory").ok


def test_disks_of_boxes(config: Config) -> None:
    check = found(replace(config, boxes_size=300 << 20), "disks of boxes")
    assert check.ok
    assert check.finding == f"limited, on {config.state_dir}/disks.img, 300M (will be created)"
    check = found(replace(config, boxes_size=0), "disks of boxes")
    assert not check.ok
    assert not check.needed
    assert check.finding == "no limits: --boxes-size is 0"
    assert check.remedy == "give another size, or leave it out"


def test_cgroups_and_what_they_lack(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(config, "cgroups").finding.startswith(cgroups.detect().mode)

    def missing() -> cgroups.Layout:
        raise Unavailable("cgroup controllers are not mounted: pids")

    monkeypatch.setattr(cgroups, "detect", missing)
    check = found(config, "cgroups")
    assert (check.ok, check.needed) == (False, True)
    assert "pids" in check.finding


def test_the_kernel_is_asked_for_the_fence(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(config, "network fence").ok
    monkeypatch.setattr(fence, "ruleset", lambda _: "add rule inet nowhere nothing\n")
    check = found(config, "network fence")
    assert (check.ok, check.needed) == (False, True)
    assert "modprobe" in check.remedy


def test_taken_port(config: Config) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = Address("127.0.0.1", holder.getsockname()[1])
        for name, changed in (
            ("SSH address", replace(config, ssh_addr=taken)),
            ("API address", replace(config, api_addr=taken)),
            (
                "metrics address",
                replace(config, telemetry=TelemetrySettings(metrics_addr=taken)),
            ),
        ):
            check = found(changed, name)
            assert not check.ok
            assert str(taken) in check.finding
            assert "--" in check.remedy


def test_lock_of_another_daemon_is_named(config: Config) -> None:
    assert lock_holder(config.state_dir) is None
    with (config.state_dir / "lock").open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4711\n")
        file.flush()
        assert lock_holder(config.state_dir) == "4711"
        check = found(config, "lock")
        assert check.ok
        assert "4711" in check.finding
        [refusal] = [one for one in doctor.checks(config, starting=True) if one.name == "lock"]
        assert not refusal.ok
        assert refusal.remedy
    assert found(config, "lock").ok


@pytest.mark.parametrize(("mode", "ok"), [(0o600, True), (0o640, False), (None, False)])
def test_store_file_must_be_private(config: Config, mode: int | None, *, ok: bool) -> None:
    file = config.state_dir / "store.json"
    if mode is not None:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, mode))
        file.chmod(mode)
    check = found(replace(config, store_file=file), "--store-file")
    assert check.ok is ok
    assert str(file) in check.remedy


@pytest.mark.parametrize(("release", "ok"), [("5.11.0-9", False), ("5.12.0", True), ("6.1", True)])
def test_kernel_must_have_what_drives_need(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, release: str, ok: bool
) -> None:
    here = os.uname()
    uname = os.uname_result((here.sysname, here.nodename, release, here.version, here.machine))
    monkeypatch.setattr(os, "uname", lambda: uname)
    check = found(config, "kernel")
    assert check.ok is ok
    assert "5.12" in check.remedy


def test_suspending_is_optional(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = doctor.suspending(config)
    assert not check.ok
    assert not check.needed
    assert check.finding.startswith("boxes cannot suspend here: ")
    assert check.remedy
    assert list(config.state_dir.iterdir()) == []


def test_suspending_without_a_writable_directory(config: Config) -> None:
    file = config.state_dir / "file"
    file.touch()
    check = doctor.suspending(replace(config, state_dir=file / "state"))
    assert not check.ok
    assert "could not start" in check.finding
    assert "--state-dir" in check.remedy


def test_clients_of_docker_and_s3_load_only_when_used() -> None:
    """Their import takes a quarter of the time that the service needs to load."""
    clients = "{'aiodocker', 'aiohttp', 'aioboto3'}"
    program = f"import boxd.service, boxd.doctor, sys; print({clients} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout == b"set()\n"


def test_the_docker_backend_needs_its_engine_and_no_runc(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket_path = config.state_dir / "absent"
    docker = replace(config, backend="docker", docker_socket=socket_path)
    check = found(docker, "docker engine")
    assert (check.ok, check.needed) == (False, True)
    assert check.finding == f"no Docker engine at {socket_path}: there is no such socket"
    assert "--docker-socket" in check.remedy
    assert "docker engine" not in {one.name for one in doctor.checks(config)}
    monkeypatch.setenv("PATH", str(config.state_dir))
    assert "runc" not in {one.name for one in doctor.checks(docker)}
    suspend = doctor.suspending(docker)
    assert (suspend.ok, suspend.needed) == (False, False)
    assert "docker backend cannot suspend boxes" in suspend.finding


async def test_a_left_fence_or_cgroup_counts_as_running(config: Config) -> None:
    names, layout = HostNames(config.instance, config.state_dir), cgroups.detect()

    async def left() -> bool:
        return await asyncio.to_thread(doctor.left_running, config)

    assert not await left()
    cgroups.prepare_parent(layout, names.cgroup_parent, 1 << 30)
    assert await left()
    await cgroups.remove(layout, names.cgroup_parent)
    assert not await left()
    await run("nft", "add", "table", "inet", names.table)
    assert await left()
    await run("nft", "delete", "table", "inet", names.table)
    assert not await left()
