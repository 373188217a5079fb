"""One backend for all boxes of an installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxd.backends.choose import choose, refuse_foreign
from boxd.config import BACKENDS, Config
from boxd.errors import Unavailable


@pytest.mark.parametrize("name", BACKENDS)
def test_the_chosen_backend_is_made(tmp_path: Path, name: str) -> None:
    assert choose(Config(state_dir=tmp_path, backend=name)).name == name


def test_boxes_of_another_backend_are_refused_with_the_flag_to_give() -> None:
    config = Config(state_dir=Path("/s"), backend="docker")
    refuse_foreign(config, [])
    refuse_foreign(config, ["docker", "docker"])
    with pytest.raises(Unavailable, match="/s holds boxes of the backend runc; start with --back"):
        refuse_foreign(config, ["docker", "runc"])
