"""The drive of a box that mounts it itself: what it answers when the host does not play along."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

from box_guest import protocol
from box_guest.drive.workspace import BoxDrive
from box_guest.fuse import mounts as fuse_mounts

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

    import pytest

    from box_guest.process.process import Reaper
    from box_guest.ssh.forward import DriveGate

CREDENTIALS = {"volume": "v", "schema": "s", "meta_dsn": "d", "store": {"endpoint": "agent"}}


async def test_a_mount_that_the_kernel_does_not_give_up_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked would wait for its whole patience else."""

    def detach(directory: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(directory))

    def background(work: Coroutine[Any, Any, None]) -> None:
        work.close()

    monkeypatch.setattr(fuse_mounts, "detach", detach)
    drive = BoxDrive(
        cast("DriveGate", None),
        cast("Reaper", None),
        background,
        target=tmp_path / "wrk",
        directory=tmp_path / "gate",
    )
    state = await drive.do(protocol.DRIVE_MOUNT, CREDENTIALS)
    assert protocol.drive_state(state)["mounted"] is False
    assert state["error"] == f"{tmp_path / 'wrk'}: Operation not permitted"
