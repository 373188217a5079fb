"""Which lxcfs is taken, and when a dead one is replaced."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from boxd.backends.host import cgroups, mounts
from boxd.backends.host.names import HostNames
from boxd.backends.oci import drive_mount, lxcfs
from boxd.backends.oci.lxcfs import RETRY_DELAYS, STABLE_AFTER, Lxcfs, Retries
from boxd.backends.runc.containers import Containers
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from boxd.backends.records import Record
    from tests.plugins.strict_logs import AssertLogs


def program(place: Path, says: str, status: int = 0) -> Path:
    """A program that writes a line to its error output, as lxcfs does with its version."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    place.chmod(0o755)
    return place


async def test_the_systems_own_is_taken_first(tmp_path: Path) -> None:
    own = program(tmp_path / "usr/lxcfs", '"6.0.4"')
    unpacked = program(tmp_path / "prefix/bin/lxcfs", '"5.0.3"')
    assert await lxcfs.find(str(own.parent), tmp_path / "prefix") == own
    program(own, '"4.0.12"')
    assert await lxcfs.find(str(own.parent), tmp_path / "prefix") == unpacked
    program(own, "cannot open shared object file", 127)
    assert await lxcfs.find(str(own.parent), tmp_path / "prefix") == unpacked


@pytest.mark.parametrize(
    ("says", "status", "why"),
    [('"4.0.12"', 0, "is version 4.0"), ("no library", 127, "does not run")],
)
async def test_what_does_not_do_is_named(tmp_path: Path, says: str, status: int, why: str) -> None:
    with pytest.raises(Unavailable, match="lxcfs is not installed"):
        await lxcfs.find(str(tmp_path), tmp_path)
    own = program(tmp_path / "usr/lxcfs", says, status)
    with pytest.raises(Unavailable, match=why):
        await lxcfs.find(str(own.parent), tmp_path)


def test_each_box_has_places_of_its_own(tmp_path: Path) -> None:
    one = Lxcfs(HostNames("abcdef", tmp_path))
    files = one.files("1"), one.files("2")
    assert files[0].keys() == files[1].keys() == set(lxcfs.PLACES)
    assert not set(files[0].values()) & set(files[1].values())
    assert str(files[0]["/proc/stat"]) == "/run/boxd-abcdef/lxcfs/1/proc/stat"


def test_an_lxcfs_that_dies_again_and_again_is_replaced_ever_more_seldom() -> None:
    now, retries, pauses = 1000.0, Retries(), []
    for _ in range(len(RETRY_DELAYS) + 2):
        before = now
        while not retries.may_try(now):
            now += 0.5
        pauses.append(now - before)
    assert pauses == [*RETRY_DELAYS, RETRY_DELAYS[-1], RETRY_DELAYS[-1]]
    now += STABLE_AFTER + 1
    assert retries.may_try(now)
    assert not retries.may_try(now + RETRY_DELAYS[1] / 2)
    assert retries.may_try(now + RETRY_DELAYS[1])


MOUNT = "30 20 {device} / {place} ro - fuse.lxcfs lxcfs ro\n"


@pytest.fixture
def on_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mounts of the host, where box 1 has an lxcfs with device 0:50."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNT.format(device="0:50", place="/run/boxd-abcdef/lxcfs/1"))
    monkeypatch.setattr(lxcfs, "_MOUNTINFO", table)
    monkeypatch.setattr(mounts, "detach", lambda _place: table.write_text(""))
    return table


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lxcfs:
    """The lxcfs processes of a host without cgroups of boxes."""
    boxes = Lxcfs(HostNames("abcdef", tmp_path))
    monkeypatch.setattr(boxes, "_layout", cgroups.Layout(cgroups.Mode.V2, {"": tmp_path}))
    return boxes


@pytest.mark.parametrize(("device", "stays"), [("0:50", True), ("0:49", False)])
async def test_an_lxcfs_whose_files_the_box_never_got_ends(
    boxes: Lxcfs, on_host: Path, tmp_path: Path, device: str, *, stays: bool
) -> None:
    in_box = tmp_path / "in_box"
    in_box.write_text(MOUNT.format(device=device, place=lxcfs.PLACES[-1]))
    await boxes.adopt("1", in_box)
    assert bool(on_host.read_text()) == stays
    assert boxes.lost() == ["1"]


async def test_a_start_that_fails_twice_does_not_stop_the_box(
    boxes: Lxcfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_logs: AssertLogs
) -> None:
    monkeypatch.setattr(boxes, "_program", tmp_path / "lxcfs")

    async def fail(_box_id: str) -> None:
        raise BoxdError("cgroup cannot be removed")

    monkeypatch.setattr(boxes, "_clear", fail)
    boxes.begin("1")
    with assert_logs("cgroup cannot be removed"):
        assert not await boxes.ready("1")
    assert boxes.lost() == []


async def test_an_lxcfs_ends_when_its_files_do_not_get_into_the_box(
    on_host: Path, boxes: Lxcfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = Containers(HostNames("abcdef", tmp_path), cast("Any", None), cast("Any", None), ())

    @contextmanager
    def init(_box_id: str) -> Iterator[tuple[int, int]]:
        yield 1, 0

    async def ready(_box_id: str) -> bool:
        return True

    async def refuse(*_: object) -> None:
        raise Unavailable("it takes too long")

    monkeypatch.setattr(containers, "lxcfs", boxes)
    monkeypatch.setattr(containers, "init", init)
    monkeypatch.setattr(boxes, "ready", ready)
    monkeypatch.setattr(drive_mount, "replace_files", refuse)
    record = cast("Record", SimpleNamespace(plan=SimpleNamespace(box_id="1")))
    with pytest.raises(Unavailable, match="too long"):
        await containers.renew_lxcfs(record)
    assert on_host.read_text() == ""
