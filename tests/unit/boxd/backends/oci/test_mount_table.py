"""Mounts of a box against its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from boxd.backends.oci import bundle, mount_table
from tests.harness.boxes.plans import FACTS, PLACES, PLAN

ALL = "ro,nosuid,nodev,noexec,relatime"
MASKED = "/sys/kernel/debug"
KINDS = {"/proc/sys": "proc", "/wrk": "fuse.wrkfs", "/": "overlay"}


def configuration() -> dict[str, Any]:
    """Of a box on a host that has some of the masked paths."""
    facts = bundle.HostFacts(FACTS.nofile, FACTS.caps_swap, ("/sys/firmware", MASKED))
    return bundle.config(PLAN, PLACES, facts)


def line(
    place: str,
    options: str,
    kind: str = "tmpfs",
    *,
    root: str = "/",
    peers: str = "",
    device: str = "0:30",
    superblock: str = "rw",
) -> str:
    """Of a mountinfo file."""
    return f"30 20 {device} {root} {place} {options} {peers}- {kind} {kind} {superblock}"


def table(**changes: str) -> list[str]:
    """The mounts that the configuration demands, and those that a kernel may add."""
    lines = {"/": line("/", "rw,nodev", "overlay")}
    for mount in configuration()["mounts"]:
        options = [one for one in mount["options"] if one in mount_table.SECURITY_OPTIONS]
        place = mount["destination"]
        kind = "tmpfs" if mount["type"] in ("bind", "cgroup") else mount["type"]
        superblock = "ro" if place in bundle.MASKED_PATHS else "rw"
        lines[place] = line(place, ",".join(["x", *options]), kind, superblock=superblock)
    lines["/dev"] = line("/dev", "rw,nosuid,noexec", device="0:31")
    lines["/sys/fs/cgroup/cpu"] = line("/sys/fs/cgroup/cpu", ALL, "cgroup")
    lines["/proc/sys"] = line("/proc/sys", ALL, "proc", root="/sys")
    lines["/proc/acpi"] = line("/proc/acpi", "ro,relatime")
    lines["/proc/keys"] = line("/proc/keys", "rw,nosuid,noexec", root="/null")
    lines["/wrk"] = line("/wrk", "rw,nosuid,nodev", "fuse.wrkfs")
    return list((lines | changes).values())


def faults(lines: list[str]) -> list[str]:
    """Return the differences of a table, for a kernel with three of the optional paths."""
    table_ = mount_table.parse("\n".join(lines))
    here = frozenset({"/proc/acpi", "/proc/keys", "/proc/sys"})
    return mount_table.differences(configuration(), table_, here.__contains__)


def test_the_mounts_of_a_new_box_are_as_demanded() -> None:
    assert faults(table()) == []


@pytest.mark.parametrize(
    ("place", "options", "lost"),
    [
        ("/", "rw,relatime", "nodev"),
        (MASKED, "rw,relatime", "nodev, noexec, nosuid, ro"),
        (MASKED, "rw,nosuid,nodev,noexec", "ro"),
        ("/run/box", "ro,nosuid,nodev", "noexec"),
        ("/sys/fs/cgroup/cpu", "rw,nosuid,nodev,noexec", "ro"),
        ("/proc/sys", "rw,nosuid,nodev,noexec", "ro"),
        ("/proc/acpi", "rw,relatime", "ro"),
        ("/wrk", "rw,nosuid", "nodev"),
    ],
)
def test_every_lost_option_is_named(place: str, options: str, lost: str) -> None:
    kind = KINDS.get(place, "tmpfs")
    assert faults(table(**{place: line(place, options, kind)})) == [f"{place} is not {lost}"]


def test_a_masked_file_keeps_the_options_of_the_null_device() -> None:
    lines = table(**{"/proc/keys": line("/proc/keys", "rw,relatime", root="/null")})
    assert faults(lines) == ["/proc/keys is not noexec, nosuid"]


def test_the_null_device_of_the_host_is_no_mask() -> None:
    entry = line("/proc/keys", "ro,nosuid,noexec", "devtmpfs", root="/null")
    assert "/proc/keys is a file of the host" in faults(table(**{"/proc/keys": entry}))


def test_missing_doubled_and_unknown_mounts_are_named() -> None:
    lines = [one for one in table() if f" {MASKED} " not in one]
    assert faults(lines) == [f"nothing is mounted at {MASKED}"]
    lines = [*table(), line("/root/new", ALL)]
    assert faults(lines) == ["there is an extra mount at /root/new"]
    assert faults([*table(), table()[1]]) == ["there is an extra mount at /proc"]


@pytest.mark.parametrize("place", ["/proc/acpi", "/proc/keys", "/proc/sys"])
def test_a_path_of_this_kernel_must_be_mounted_over(place: str) -> None:
    lines = [one for one in table() if f" {place} " not in one]
    assert faults(lines) == [f"nothing is mounted at {place}"]


@pytest.mark.parametrize(
    ("place", "kind", "options"),
    [
        ("/proc/acpi", "proc", "ro"),
        ("/proc/sys", "tmpfs", ALL),
        ("/proc", "tmpfs", "rw,nosuid,nodev,noexec"),
        ("/sys/fs/cgroup/cpu", "ext4", ALL),
        (MASKED, "debugfs", ALL),
    ],
)
def test_another_kind_of_file_system_is_named(place: str, kind: str, options: str) -> None:
    lines = table(**{place: line(place, options, kind, superblock="ro")})
    assert faults(lines) == [f"{place} is a file system of type {kind}"]


def test_a_mask_that_can_be_made_writable_is_named() -> None:
    lines = table(**{MASKED: line(MASKED, ALL)})
    assert faults(lines) == [f"the file system at {MASKED} is not read-only"]


@pytest.mark.parametrize(
    "name", ["renamed", "null//deleted", "\x0c - x", "\x85", "\u00a0", "\u2028", "\udcff", "-"]
)
def test_a_box_may_rename_its_null_device(name: str) -> None:
    entry = line("/proc/keys", "rw,nosuid,noexec", root="/" + name.replace(" ", "\\040"))
    assert faults(table(**{"/proc/keys": entry.replace("0:30", "0:31")})) == []
    assert faults(table(**{"/proc/keys": entry})) == ["/proc/keys is not ro"]


def test_a_mount_with_peers_is_named() -> None:
    lines = table(**{"/run/box": line("/run/box", ALL, peers="master:1 unbindable ")})
    assert faults(lines) == ["/run/box propagates to other mount namespaces"]


def test_a_summary_is_bounded() -> None:
    assert mount_table.summary(["a", "b"]) == "a; b"
    assert mount_table.summary(list("abcdefgh")) == "a; b; c; d; e, and 3 more"


def test_shared_sources_are_found() -> None:
    config = configuration()
    assert mount_table.shared_sources(config) == []
    binds = [mount for mount in config["mounts"] if mount["type"] == "bind"]
    binds[-1]["source"] = binds[-2]["source"]
    assert mount_table.shared_sources(config) == [binds[-2]["source"]]
