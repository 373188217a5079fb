"""The order in which a service begins and takes back what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd import service
from boxd.cli.main import parser
from boxd.cli.settings import config_of
from boxd.errors import BadRequest, Unavailable
from boxd.service import Service
from tests.doubles.backend import FakeBackend
from tests.doubles.control_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.config import Config


class Refusing(FakeBackend):
    """Changes the host, then refuses."""

    changed = False

    async def setup(self) -> None:
        """The worst moment: at the end."""
        self.changed = True
        raise Unavailable("the fence does not hold")

    async def close(self) -> None:
        """Takes the change back."""
        self.changed = False


@pytest.mark.parametrize("serve", [True, False])
async def test_a_setup_that_is_refused_leaves_the_host_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, serve: bool
) -> None:
    backend, sizes = Refusing(suspends=False), []

    async def stores(*_: object, **__: object) -> tuple[MemoryStore, None]:
        return MemoryStore(), None

    def choose(config: Config, *_: object, **__: object) -> Refusing:
        sizes.append(config.boxes_size)
        return backend

    monkeypatch.setattr(Service, "_start_stores", stores)
    monkeypatch.setattr(service, "choose", choose)
    config = config_of(parser().parse_args(["serve", "--state-dir", str(tmp_path / "state")]))
    with pytest.raises(Unavailable, match="the fence does not hold"):
        await Service(config, lambda _: None).start(serve=serve)
    assert not backend.changed
    assert sizes == [None if serve else 0]


async def test_a_floor_of_free_space_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stores(*_: object, serve: bool) -> tuple[MemoryStore, None]:
        raise Unavailable(f"stores begin, serving: {serve}")

    monkeypatch.setattr(Service, "_start_stores", stores)
    state = str(tmp_path / "state")
    config = config_of(parser().parse_args(["serve", "--state-dir", state, "--min-free", "9999T"]))
    with pytest.raises(BadRequest, match=r"--min-free: .* MiB can never be free"):
        await Service(config, lambda _: None).start()
    with pytest.raises(Unavailable, match="stores begin, serving: False"):  # `boxd down` asks not
        await Service(config, lambda _: None).start(serve=False)
