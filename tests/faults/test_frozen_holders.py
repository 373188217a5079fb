"""A holder of write delegations that is frozen delays the others for some seconds, and then loses
its unsent changes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess, until
from wrkfs.meta.delegations.journal import read_entries

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.mounts.frozen import Frozen
    from wrkfs.config import VolumeConfig

LONGEST = 20.0
"""Seconds after which a call was held up: about 6 are documented, and the machine may be busy."""
TRIALS = 50
"""Freezings, of which one must come before the batch is sent."""


def freeze_with_unsent_changes(
    holder: MountProcess, journals: Path, frozen: Frozen, home: Path
) -> str:
    """Make a file and freeze the mount before it sends the change; return the name."""
    for number in range(TRIALS):
        (home / f"lost{number}").write_bytes(b"unsent")
        frozen.stop(holder)
        if any(path.stat().st_size for path in journals.glob("*-*/[0-9]*")):
            return f"lost{number}"
        frozen.go_on(holder)
    raise AssertionError("each batch was sent before the freeze")


@pytest.mark.promise("D2")
@pytest.mark.timeout(180)
def test_a_frozen_holder_loses_what_it_did_not_send(
    volume: VolumeConfig, tmp_path: Path, frozen: Frozen
) -> None:
    mounts: list[MountProcess] = []
    journals = tmp_path / "journals"
    try:
        for name in ("holder", "other"):
            (tmp_path / name).mkdir()
            mounts.append(MountProcess(volume, tmp_path / name, "--journal", str(journals)))
        holder, other = mounts
        home = holder.path / "home"
        home.mkdir()
        descriptor = os.open(home / "open", os.O_RDWR | os.O_CREAT)
        os.write(descriptor, b"sent")
        os.fsync(descriptor)
        name = freeze_with_unsent_changes(holder, journals, frozen, home)

        began = time.monotonic()
        shown = os.listdir(other.path / "home")
        assert time.monotonic() < began + LONGEST
        assert "open" in shown
        assert name not in shown
        (other.path / "home" / name).write_bytes(b"of the other mount")

        frozen.go_on(holder)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(descriptor)
        os.close(descriptor)
        until(lambda: "lost changes of" in holder.log.read_text())
        assert name in holder.log.read_text()
        (place,) = journals.glob("lost-*")
        entries = [read_entries(path)[0] for path in sorted(place.glob("[0-9]*"))]
        assert any(name.encode() in record for records in entries for record in records)
        assert (home / name).read_bytes() == b"of the other mount"
        (home / "later").write_bytes(b"works again")
        assert (other.path / "home" / "later").read_bytes() == b"works again"
    finally:
        for mount in mounts:
            mount.clean()
