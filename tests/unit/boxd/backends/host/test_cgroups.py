"""Hierarchies as the kernel lists them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from boxd.backends.host import cgroups
from boxd.errors import BoxdError, Unavailable

LINE = "30 20 0:26 / {place} rw,relatime shared:9 - {kind} {kind} rw,{options}"


def info(*mounts: tuple[str, str, str]) -> str:
    """Text of a mountinfo file."""
    other = "20 1 254:0 / / rw,relatime - ext4 /dev/root rw"
    lines = (LINE.format(place=place, kind=kind, options=o) for place, kind, o in mounts)
    return "\n".join([other, *lines])


V1 = [
    ("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"),
    ("/sys/fs/cgroup/memory", "cgroup", "memory"),
    ("/sys/fs/cgroup/pids", "cgroup", "pids"),
    ("/sys/fs/cgroup/devices", "cgroup", "devices"),
    ("/sys/fs/cgroup/systemd", "cgroup", "xattr,name=systemd"),
]
V2 = ("/sys/fs/cgroup", "cgroup2", "nsdelegate")


def test_unified() -> None:
    layout = cgroups.parse_mounts(info(V2))
    assert layout.mode is cgroups.Mode.V2
    assert layout.directory("memory", "/boxd-1/x") == Path("/sys/fs/cgroup/boxd-1/x")


def test_an_old_hierarchy_beside_the_unified_one() -> None:
    """As VPN programs (net_cls) and elogind mount them."""
    for option in ("net_cls", "xattr,name=elogind", "freezer"):
        layout = cgroups.parse_mounts(info(V2, ("/old", "cgroup", option)))
        assert (layout.mode, layout.roots()) == (cgroups.Mode.V2, [Path("/sys/fs/cgroup")])


def test_swap_is_capped_where_the_kernel_accounts_for_it(tmp_path: Path) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    (tmp_path / "b").mkdir()
    assert cgroups.caps_swap(layout)  # nothing tells otherwise
    (tmp_path / "b/memory.max").write_text("max")
    assert not cgroups.caps_swap(layout)
    assert not cgroups.caps_swap(layout, "/b")
    (tmp_path / "b/memory.swap.max").write_text("max")
    assert cgroups.caps_swap(layout)
    assert cgroups.caps_swap(layout, "/b")


BOUNDS = cgroups.Bounds(cpu_quota_us=1000, cpu_period_us=10_000, memory_bytes=1 << 20, pids=7)


def test_a_bounded_cgroup_of_v2(tmp_path: Path) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    place = tmp_path / "top/helper"
    place.mkdir(parents=True)
    for name in ("cpu.max", "memory.max", "memory.swap.max", "pids.max"):
        (place / name).touch()
    (tmp_path / "top/cgroup.subtree_control").write_text("cpu")
    assert cgroups.make_bounded(layout, "/top", "/top/helper", BOUNDS) == [place]
    assert {file.name: file.read_text() for file in place.iterdir()} == {
        "cpu.max": "1000 10000",
        "memory.max": str(1 << 20),
        "memory.swap.max": "0",
        "pids.max": "7",
    }
    assert (tmp_path / "top/cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_bounded_cgroup_of_v1(tmp_path: Path) -> None:
    layout = cgroups.Layout(
        cgroups.Mode.V1, {name: tmp_path / name for name in ("cpu", "memory", "pids")}
    )
    files = ("cpu/x/cpu.cfs_period_us", "cpu/x/cpu.cfs_quota_us", "pids/x/pids.max")
    for name in (*files, "memory/x/memory.limit_in_bytes"):  # without memsw: no count of swap
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    made = cgroups.make_bounded(layout, "/", "/x", BOUNDS)
    assert made == [tmp_path / name / "x" for name in ("cpu", "memory", "pids")]
    assert [(tmp_path / name).read_text() for name in files] == ["10000", "1000", "7"]
    assert (tmp_path / "memory/x/memory.limit_in_bytes").read_text() == str(1 << 20)


def test_separate() -> None:
    layout = cgroups.parse_mounts(info(*V1))
    assert layout.mode is cgroups.Mode.V1
    assert layout.directory("cpu", "/b/x") == Path("/sys/fs/cgroup/cpu,cpuacct/b/x")
    assert layout.directory("cpuacct", "/b/x") == layout.directory("cpu", "/b/x")
    assert len(layout.roots()) == 5


def test_hybrid() -> None:
    layout = cgroups.parse_mounts(info(*V1, ("/sys/fs/cgroup/unified", "cgroup2", "nsdelegate")))
    assert layout.mode is cgroups.Mode.HYBRID
    assert Path("/sys/fs/cgroup/unified") in layout.roots()


@pytest.mark.parametrize("mode", [cgroups.Mode.V1, cgroups.Mode.HYBRID, cgroups.Mode.V2])
def test_files_of_our_own_cgroups(tmp_path: Path, mode: cgroups.Mode) -> None:
    old = {"cpu": "cpu,cpuacct", "cpuacct": "cpu,cpuacct", "name=systemd": "systemd"}
    unified = {"": "" if mode is cgroups.Mode.V2 else "unified"}
    names = {
        cgroups.Mode.V1: old,
        cgroups.Mode.HYBRID: old | unified,
        cgroups.Mode.V2: unified,
    }[mode]
    layout = cgroups.Layout(mode, {name: tmp_path / place for name, place in names.items()})
    for place in set(names.values()):
        (tmp_path / place / "s/boxd").mkdir(parents=True)
        (tmp_path / place / "s/boxd/cgroup.procs").touch()
    listing = tmp_path / "listing"
    listing.write_text("3:cpu,cpuacct:/s/boxd\n2:net_cls:/\n1:name=systemd:/s/boxd\n0::/s/boxd\n")
    found = cgroups.own_files(layout, listing)
    assert sorted(found) == sorted(
        tmp_path / place / "s/boxd/cgroup.procs" for place in set(names.values())
    )


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Unavailable, match="no cgroups are mounted"):
        cgroups.parse_mounts(info())
    with pytest.raises(Unavailable, match="devices, pids"):
        cgroups.parse_mounts(info(*V1[:2]))


async def test_unknown_cgroups_are_empty_and_gone() -> None:
    layout = cgroups.detect()
    assert cgroups.pids_of(layout, "/boxd-absent/x") == []
    assert cgroups.usage(layout, "/boxd-absent/x") == cgroups.Usage(0.0, 0, 0)
    await cgroups.remove(layout, "/boxd-absent/x")


async def test_what_others_remove_meanwhile_does_not_keep_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    (tmp_path / "b/box").mkdir(parents=True)
    below = cgroups._below

    def seen(top: Path) -> list[Path]:
        found = below(top)
        for one in found:
            one.rmdir()  # somebody else was faster
        return found

    monkeypatch.setattr(cgroups, "_below", seen)
    await cgroups.remove(layout, "/b")
    assert not (tmp_path / "b").exists()


def test_kills_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    place = tmp_path / "x"
    place.mkdir()
    unified = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    old = cgroups.Layout(cgroups.Mode.V1, {"memory": tmp_path})
    assert cgroups.oom_kills(unified, "/x") == cgroups.oom_kills(old, "/x") == 0
    (place / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert cgroups.oom_kills(unified, "/x") == 3
    (place / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert cgroups.oom_kills(old, "/x") == 0
    (place / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert cgroups.oom_kills(old, "/x") == 2


def test_unified_counters(tmp_path: Path) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    (tmp_path / "x").mkdir()
    (tmp_path / "x/cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "x/memory.current").write_text("4096\n")
    (tmp_path / "x/pids.current").write_text("3\n")
    assert cgroups.usage(layout, "/x") == cgroups.Usage(2.5, 4096, 3)


def test_paused_ones_go_on(tmp_path: Path) -> None:
    place = tmp_path / "b/x"
    place.mkdir(parents=True)
    (place / "freezer.state").write_text("FROZEN")
    (place / "cgroup.freeze").write_text("1")
    cgroups.thaw(cgroups.Layout(cgroups.Mode.HYBRID, {"": tmp_path}), "/b/x")
    assert (place / "freezer.state").read_text() == "FROZEN"
    cgroups.thaw(cgroups.Layout(cgroups.Mode.HYBRID, {"freezer": tmp_path}), "/b/x")
    assert (place / "freezer.state").read_text() == "THAWED"
    assert (place / "cgroup.freeze").read_text() == "1"
    cgroups.thaw(cgroups.Layout(cgroups.Mode.V2, {"": tmp_path}), "/b/x")
    assert (place / "cgroup.freeze").read_text() == "0"
    cgroups.thaw(cgroups.Layout(cgroups.Mode.V2, {"": tmp_path}), "/b/absent")


def test_what_all_boxes_take_together(tmp_path: Path) -> None:
    for controller, name in (("cpu", "cpu.shares"), ("memory", "memory.limit_in_bytes")):
        (tmp_path / controller / "b").mkdir(parents=True)
        (tmp_path / controller / "b" / name).write_text("1\n")
    mounts = {name: tmp_path / name for name in ("cpu", "memory")}
    for _ in range(2):
        cgroups.prepare_parent(cgroups.Layout(cgroups.Mode.V1, mounts), "/b", 4096)
    assert (tmp_path / "memory/b/memory.limit_in_bytes").read_text() == "4096\n"
    assert int((tmp_path / "cpu/b/cpu.shares").read_text()) == 1024 * (os.cpu_count() or 1)


def test_what_all_boxes_take_together_on_v2(tmp_path: Path) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    (tmp_path / "b").mkdir()
    (tmp_path / "b/memory.max").write_text("max\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    cgroups.prepare_parent(layout, "/b", 4096)
    assert (tmp_path / "b/memory.max").read_text() == "4096\n"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory pids"


def test_the_root_of_v2_hands_its_controllers_down_first(tmp_path: Path) -> None:
    layout = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(
        Unavailable, match=r"limit of all boxes cannot be set: .*b/memory\.max: No such file"
    ):
        cgroups.prepare_parent(layout, "/b", 4096)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +pids"


def test_a_root_that_hands_nothing_down_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(os, "write", busy)
    with pytest.raises(Unavailable, match=r"cpu, memory, pids cannot be enabled .*--cgroupns=host"):
        cgroups.prepare_parent(cgroups.Layout(cgroups.Mode.V2, {"": tmp_path}), "/b", 4096)


async def test_freezing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x"
    place.mkdir()
    (place / "freezer.state").write_text("THAWED")
    (place / "cgroup.freeze").write_text("0")
    (place / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    old = cgroups.Layout(cgroups.Mode.HYBRID, {"freezer": tmp_path})
    new = cgroups.Layout(cgroups.Mode.V2, {"": tmp_path})
    for layout in (old, new):
        assert not cgroups.is_frozen(layout, "/x")
        await cgroups.freeze(layout, "/x")
        assert cgroups.is_frozen(layout, "/x")
        assert not cgroups.is_frozen(layout, "/absent")
    (place / "freezer.state").write_text("FREEZING")
    assert cgroups.is_frozen(old, "/x")
    (place / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    monkeypatch.setattr(cgroups, "FREEZE_TIMEOUT", 0.01)
    with pytest.raises(BoxdError, match="cannot be frozen"):
        await cgroups.freeze(new, "/x")
    assert not cgroups.is_frozen(new, "/x")
    without = cgroups.Layout(cgroups.Mode.HYBRID, {"": tmp_path})
    assert not cgroups.is_frozen(without, "/x")
    with pytest.raises(Unavailable, match="freezer"):
        await cgroups.freeze(without, "/x")


@pytest.mark.parametrize("mode", [cgroups.Mode.HYBRID, cgroups.Mode.V2])
async def test_freezing_waits_for_who_starts_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: cgroups.Mode
) -> None:
    place, looks = tmp_path / "x" / "below", iter((True, True, False))
    place.mkdir(parents=True)
    (place / "cgroup.procs").write_text("4711\n")
    (place.parent / "cgroup.procs").write_text("")
    (place.parent / "freezer.state").write_text("THAWED")
    (place.parent / "cgroup.freeze").write_text("0")
    (place.parent / "cgroup.events").write_text("frozen 1\n")
    layout = cgroups.Layout(mode, {"" if mode is cgroups.Mode.V2 else "freezer": tmp_path})
    frozen_then: list[bool] = []

    def spawning(pid: int) -> bool:
        assert pid == 4711
        frozen_then.append(cgroups.is_frozen(layout, "/x"))
        return next(looks)

    monkeypatch.setattr(cgroups, "is_spawning", spawning)
    await cgroups.freeze(layout, "/x")
    assert frozen_then == [True, True, True]
    assert cgroups.is_frozen(layout, "/x")


def test_hierarchies_that_are_mounted_twice() -> None:
    """CRIU does that for a moment."""
    once = (
        "30 1 0:30 / /c/unified rw - cgroup2 cgroup2 rw\n"
        "31 1 0:31 / /c/memory rw - cgroup cgroup rw,memory\n"
        "32 1 0:32 / /c/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 1 0:33 / /c/pids rw - cgroup cgroup rw,pids\n"
        "34 1 0:34 / /c/devices rw - cgroup cgroup rw,devices\n"
    )
    assert cgroups.parse_mounts(once + once.replace("/c/", "/yard/")) == cgroups.parse_mounts(once)
