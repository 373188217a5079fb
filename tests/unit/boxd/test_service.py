"""The order in which a service begins and takes back what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd import service
from boxd.backends.fake import FakeBackend
from boxd.cli.main import parser
from boxd.cli.settings import config_of
from boxd.errors import Unavailable
from boxd.service import Service
from boxd.store.memory import MemoryStore

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

    async def stores(*_: object) -> tuple[MemoryStore, None]:
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
