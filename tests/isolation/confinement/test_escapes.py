"""What a box's root tries to get out, all of it refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.boxes.escapes import (
    check_every_escape_is_refused,
    check_ordinary_work_is_not_refused,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.backend import BoxHost


async def test_every_escape_is_refused(box_host: BoxHost) -> None:
    await check_every_escape_is_refused(box_host)


async def test_ordinary_work_is_not_refused(box_host: BoxHost) -> None:
    """The filter and the rights leave what people do in a box alone."""
    await check_ordinary_work_is_not_refused(box_host)


async def test_planted_links_are_not_followed(box_host: BoxHost, tmp_path: Path) -> None:
    """The daemon removes and starts a hostile layer without touching what its links name."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "resolv.conf").write_text("mine")
    box = await box_host.box()
    command = f"rm -rf /etc/resolv.conf /opt && ln -s {precious} /opt && ln -s / /root/all && "
    command += f"ln -s {precious}/resolv.conf /etc/resolv.conf && ln -s / /tmp/top"
    assert (await box_host.run(box, "bash", "-c", command)).status == 0
    await box_host.backend.stop(box)
    await box_host.backend.start(box)
    await box_host.backend.stats(box)
    await box_host.backend.destroy(box)
    assert (precious / "resolv.conf").read_text() == "mine"
    assert box_host.leftovers() == []
