"""Records of boxes: written so that they last, and one that cannot be read harms no other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.names import HostNames
from boxd.backends.interface import BoxPlan
from boxd.backends.records import Record, Records
from boxd.backends.runc.origins import Origins
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from tests.plugins.strict_logs import AssertLogs

GOOD, BAD = "a" * 32, "b" * 32
ROOT = Path("/root")


def record(box_id: str, slot: int = 0) -> Record:
    """Of a plain box."""
    plan = BoxPlan(box_id, "box", "debian", ROOT, ROOT, ROOT, 1.0, 64, 64, "all")
    return Record(slot, plan)


async def kept(tmp_path: Path) -> tuple[Records, HostNames]:
    """Records of two boxes."""
    names = HostNames("abc123", tmp_path)
    records = Records(names)
    for slot, box_id in enumerate((GOOD, BAD)):
        names.paths(box_id).directory.mkdir(parents=True)
        await records.put(record(box_id, slot))
    return records, names


def damaged() -> list[str]:
    """Texts that are no records."""
    whole = record(BAD).dump()
    newer = json.loads(whole)
    newer["plan"]["telepathy"] = True
    return ["", whole[: len(whole) // 2], "\0" * len(whole), "[]", '{"slot": 1}', json.dumps(newer)]


async def test_what_was_put_is_found(tmp_path: Path) -> None:
    records, _ = await kept(tmp_path)
    assert list(records.all()) == [record(GOOD, 0), record(BAD, 1)]
    assert records.find("c" * 32) is None


@pytest.mark.parametrize("text", damaged())
async def test_a_damaged_record_is_told_and_harms_no_other(
    tmp_path: Path, assert_logs: AssertLogs, text: str
) -> None:
    records, names = await kept(tmp_path)
    names.paths(BAD).record.write_text(text)
    with assert_logs("cannot be read"):
        assert list(records.all()) == [record(GOOD, 0)]
    assert list(records.all()) == [record(GOOD, 0)]  # and logged once
    assert records.ids() == [GOOD, BAD]
    with pytest.raises(Unavailable, match="the box's disk is kept: restore the file"):
        records.get(BAD)
    await records.put(record(BAD, 1))
    assert records.get(BAD) == record(BAD, 1)


async def test_a_record_of_a_newer_release_says_so(tmp_path: Path) -> None:
    records, names = await kept(tmp_path)
    names.paths(BAD).record.write_text(damaged()[-1])
    with pytest.raises(Unavailable, match=r"a newer release wrote it.* telepathy"):
        records.get(BAD)


async def test_a_damaged_origin_harms_no_other(tmp_path: Path, assert_logs: AssertLogs) -> None:
    origins = Origins(HostNames("abc123", tmp_path))
    for name in ("one", "two"):
        origins.put(name, record(GOOD))
    (tmp_path / "origins/two.json").write_text("")
    with assert_logs("cannot be read"):
        assert list(origins.all()) == [record(GOOD)]


async def test_a_record_is_on_the_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, names = await kept(tmp_path)
    path = names.paths(GOOD).record
    seen: list[tuple[str, int]] = []

    def fsync(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        seen.append((name, json.loads(path.read_text())["slot"]))

    monkeypatch.setattr(os, "fsync", fsync)
    await records.put(record(GOOD, 7))
    assert seen == [("box.json.new", 0), (GOOD, 7), ("boxes", 7)]
