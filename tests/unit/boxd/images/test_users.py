"""What keeps a version of an image on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.names import HostNames
from boxd.backends.interface import BoxPlan
from boxd.backends.records import Record
from boxd.backends.runc.origins import Origins
from boxd.config import Config
from boxd.errors import Conflict
from boxd.maintenance import remove_image

if TYPE_CHECKING:
    from pathlib import Path


def test_a_snapshot_keeps_its_image_and_a_template_does_not(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path.resolve())
    image = config.state_dir / "images" / "python"
    version = image / "versions" / "v1"
    version.mkdir(parents=True)
    (image / "rootfs").symlink_to("versions/v1")
    plan = BoxPlan("a" * 32, "web", "python", version, version, version, 1, 512, 10, "none")
    origins = Origins(HostNames(config.instance, config.state_dir))
    origins.put("b" * 32, Record(0, plan))
    origins.put("c" * 32, Record(0, replace(plan, template=True)))
    with pytest.raises(Conflict, match="used by a snapshot of web; remove it first"):
        remove_image(config, "python")
    origins.drop("b" * 32)
    remove_image(config, "python")
    assert not version.exists()
