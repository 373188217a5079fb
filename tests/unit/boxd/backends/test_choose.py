"""One backend for all boxes of an installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxd.backends.choose import choose
from boxd.config import BACKENDS, Config
from boxd.errors import BadRequest, Unavailable


@pytest.mark.parametrize("serve", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_chosen_backend_is_made(tmp_path: Path, name: str, *, serve: bool) -> None:
    config = Config(state_dir=tmp_path, backend=name)
    assert choose(config, [], serve=serve).name == name
    assert choose(config, [name, name], serve=serve).name == name


def test_boxes_of_another_backend_are_refused_with_the_flag_to_give() -> None:
    config = Config(state_dir=Path("/s"), backend="docker")
    with pytest.raises(Unavailable, match="/s holds boxes of the backend runc; start with --back"):
        choose(config, ["runc"], serve=True)


def test_boxes_of_another_backend_are_stopped_by_theirs() -> None:
    config = Config(state_dir=Path("/s"))
    assert choose(config, ["docker"], serve=False).name == "docker"


def test_boxes_of_an_engine_do_not_mount() -> None:
    config = Config(state_dir=Path("/s"), backend="docker", mount_in_box=True)
    with pytest.raises(BadRequest, match="--mount-in-box is only for --backend runc"):
        choose(config, [], serve=True)
