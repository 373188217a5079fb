"""What a flavor with containers adds to the configuration of a box, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from boxd.backends.host.id_ranges import IdRange
from boxd.backends.oci import bundle, inner_containers
from tests.harness.boxes.plans import FACTS, PLACES, PLAN

IDS = IdRange(1 << 30)


def made(*, containers: bool) -> dict[str, Any]:
    """The configuration of a box."""
    return bundle.config(replace(PLAN, containers=containers), PLACES, FACTS, ids=IDS)


def calls(config: dict[str, Any]) -> set[str]:
    """Names of calls that are allowed for all arguments."""
    rules = config["linux"]["seccomp"]["syscalls"]
    return {
        name
        for rule in rules
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        for name in rule["names"]
    }


def test_rights_and_calls() -> None:
    plain, inner = made(containers=False), made(containers=True)
    rights = [one["process"]["capabilities"]["bounding"] for one in (plain, inner)]
    assert set(rights[1]) - set(rights[0]) == set(inner_containers.CAPABILITIES)
    assert calls(inner) - calls(plain) == set(inner_containers.CALLS)
    assert calls(plain) - calls(inner) == set()
    for name in ("bpf", "open_by_handle_at", "perf_event_open", "userfaultfd", "kexec_load"):
        assert name not in calls(inner)


def test_mounts_differ_by_the_cgroup_and_the_device() -> None:
    plain, inner = made(containers=False), made(containers=True)
    before = {one["destination"]: one["options"] for one in plain["mounts"]}
    after = {one["destination"]: one["options"] for one in inner["mounts"]}
    assert after.keys() - before.keys() == {"/dev/fuse"}
    assert {place for place in before if before[place] != after[place]} == {"/sys/fs/cgroup"}
    assert "ro" not in after["/sys/fs/cgroup"]
    paths = [set(one["linux"]["readonlyPaths"]) for one in (plain, inner)]
    assert paths[0] - paths[1] == {"/proc/sys"}
    assert plain["linux"]["maskedPaths"] == inner["linux"]["maskedPaths"]


def test_netlink_sockets_for_the_packet_filter() -> None:
    rules = made(containers=True)["linux"]["seccomp"]["syscalls"]
    sockets = [rule for rule in rules if rule["names"] == ["socket"] and rule["args"][1:]]
    netlink = [rule for rule in sockets if rule["args"][0]["value"] == 16]
    actions = {protocol: matching(netlink, protocol) for protocol in range(24)}
    assert [one for one, action in actions.items() if action == {"SCMP_ACT_ALLOW"}] == [0, 4, 12]
    assert {len(action) for action in actions.values()} == {1}


def matching(rules: list[dict[str, Any]], protocol: int) -> set[str]:
    """The actions of all rules that match a protocol."""
    return {
        rule["action"]
        for rule in rules
        if (protocol > rule["args"][1]["value"]) == (rule["args"][1]["op"] == "SCMP_CMP_GT")
        and (protocol == rule["args"][1]["value"] or rule["args"][1]["op"] == "SCMP_CMP_GT")
    }
