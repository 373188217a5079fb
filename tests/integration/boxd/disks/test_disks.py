"""Boxes on disks of both kinds: state directories of releases that had plain ones alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.runc.backend import RuncBackend
from boxd.errors import Unavailable
from tests.harness.boxes.backend import BOXES_SIZE, STAND_IN, BoxHost, open_box_host

if TYPE_CHECKING:
    from pathlib import Path


async def test_boxes_of_an_earlier_release_go_on(tmp_path: Path, image_rootfs: Path) -> None:
    async with open_box_host(tmp_path / "state", image_rootfs) as host:
        without = await _other_daemon(host, 0)
        old = await without.box()
        await without.run(old, "/bin/sh", "-c", "echo old > /root/file")
        await without.backend.stop(old)
        record = host.names.paths(old).record
        content = json.loads(record.read_text())
        assert content.pop("disk") == "plain"
        record.write_text(json.dumps(content))
        present = await _other_daemon(host, BOXES_SIZE)
        await present.backend.start(old)
        assert (await present.run(old, "/bin/cat", "/root/file")).out == "old\n"
        assert (await present.backend.stats(old)).disk_bytes > 0
        new = await present.box()
        assert json.loads(host.names.paths(new).record.read_text())["disk"] == "btrfs"
        # Who switches the volume off again keeps the boxes that stand on it.
        without = await _other_daemon(host, 0)
        await without.backend.stop(new)
        await without.backend.start(new)
        assert not without.backend.capabilities().disk_limit
        for box in (old, new):
            await without.backend.destroy(box)
        assert host.leftovers() == []


async def test_a_box_whose_volume_is_gone(tmp_path: Path, image_rootfs: Path) -> None:
    async with open_box_host(tmp_path / "state", image_rootfs) as host:
        box = await host.box()
        await host.backend.stop(box)
        await host.backend.close()
        (tmp_path / "state/disks.img").unlink()
        without = await _other_daemon(host, 0)
        with pytest.raises(Unavailable, match="volume for boxes, which is not available"):
            await without.backend.start(box)
        await without.backend.destroy(box)
        assert host.leftovers() == []


async def _other_daemon(host: BoxHost, boxes_size: int) -> BoxHost:
    config = replace(host.config, boxes_size=boxes_size)
    backend = RuncBackend(config, init=STAND_IN)
    await backend.setup()
    return BoxHost(backend, config, host.rootfs)
