"""What a box's container is made of, compared with what runc gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from boxd.backends.docker import config
from boxd.backends.interface import BoxPlan
from boxd.backends.oci import bundle

PLAN = BoxPlan(
    box_id="b" * 32,
    hostname="web",
    image="python:3.12",
    rootfs=None,
    runtime=Path("/state/runtime"),
    run_dir=Path("/state/boxes/b/run"),
    cpus=0.5,
    mem_mb=512,
    pids=99,
    egress="all",
)
FACTS = config.EngineFacts(nofile=20_000, cgroup_parent="/boxd-abcdef")


def made(*environment: str, facts: config.EngineFacts = FACTS) -> dict[str, Any]:
    """The body for an image with an environment."""
    return config.container(PLAN, "abcdef", "sha256:1", environment, facts)


def test_the_agent_is_init_as_root_whatever_the_image_says() -> None:
    body = made()
    assert body["Entrypoint"] == list(bundle.INIT)
    assert (body["Cmd"], body["User"], body["WorkingDir"]) == ([], "0:0", "/")
    assert (body["StopSignal"], body["Healthcheck"]) == ("SIGTERM", {"Test": ["NONE"]})
    assert body["HostConfig"]["Init"] is False


def test_rights_are_those_of_runc() -> None:
    host = made()["HostConfig"]
    privileges, filter_ = host["SecurityOpt"]
    assert privileges == "no-new-privileges=true"
    assert json.loads(filter_.removeprefix("seccomp=")) == bundle.seccomp()
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], list(bundle.CAPABILITIES))
    assert host["MaskedPaths"] == list(bundle.MASKED_PATHS)
    assert host["ReadonlyPaths"] == list(bundle.READONLY_PATHS)
    assert host["Privileged"] is False


def test_caps_are_those_of_runc() -> None:
    host = made()["HostConfig"]
    places = bundle.Places(
        root=Path("/root"),
        netns=Path("/netns"),
        cgroup="/cgroup",
        masks=Path("/empty"),
        run_dir=Path("/run"),
        runtime=Path("/runtime"),
    )
    like = bundle.config(PLAN, places, bundle.HostFacts(20_000, caps_swap=True))["linux"]
    resources = like["resources"]
    assert host["Memory"] == host["MemorySwap"] == resources["memory"]["limit"]
    assert host["CpuQuota"] == resources["cpu"]["quota"]
    assert host["CpuPeriod"] == resources["cpu"]["period"]
    assert host["CpuShares"] == resources["cpu"]["shares"]
    assert host["PidsLimit"] == resources["pids"]["limit"]
    assert host["ShmSize"] == 256 << 20
    assert {one["Name"]: (one["Soft"], one["Hard"]) for one in host["Ulimits"]} == {
        "nofile": (20_000, 20_000),
        "core": (0, 0),
    }


def test_the_engine_gives_no_network() -> None:
    host = made()["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["Sysctls"]["net.ipv6.conf.default.disable_ipv6"] == "1"
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert host["RestartPolicy"] == {"Name": "no"}


def test_the_runtime_and_the_run_directory_are_read_only() -> None:
    mounts = made()["HostConfig"]["Mounts"]
    found = {one["Target"]: (one["Source"], one["ReadOnly"]) for one in mounts}
    assert found == {"/.box": ("/state/runtime", True), "/run/box": ("/state/boxes/b/run", True)}


def test_cgroups_are_made_where_the_engine_likes_when_it_must() -> None:
    assert made()["HostConfig"]["CgroupParent"] == "/boxd-abcdef"
    free = config.EngineFacts(nofile=1, cgroup_parent=None)
    assert "CgroupParent" not in made(facts=free)["HostConfig"]


def test_nothing_of_the_images_environment_reaches_the_agent() -> None:
    entries = made("LD_PRELOAD=/x", "PATH=/evil", "PYTHONHOME=/y", "=odd")["Env"]
    assert entries == [*bundle.ENVIRONMENT, "LD_PRELOAD", "PYTHONHOME"]


def test_sessions_get_the_images_environment() -> None:
    given = ["PATH=/go/bin:/bin", "GOPATH=/go", "EMPTY=", "no-name=1", "=x", "BARE", "NUL=a\0b"]
    assert config.session_environment(given) == {
        "PATH": "/go/bin:/bin:/.box/bin",
        "GOPATH": "/go",
        "EMPTY": "",
    }


def test_an_environment_that_would_stop_every_program_is_cut() -> None:
    huge = "x" * config.SESSION_ENVIRONMENT_MAX
    assert config.session_environment(["A=1", f"B={huge}", "C=3"]) == {"A": "1"}


def test_the_runtime_is_the_flavors() -> None:
    assert "Runtime" not in made()["HostConfig"]
    plan = replace(PLAN, oci_runtime="runsc")
    body = config.container(plan, "abcdef", "sha256:1", (), FACTS)
    assert body["HostConfig"]["Runtime"] == "runsc"
