"""The order in which a service begins and takes back what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.cli.main import parser
from boxd.cli.settings import config_of
from boxd.errors import BadRequest, Unavailable
from boxd.operator_files import OperatorFiles
from boxd.privileged import local
from boxd.privileged.interface import Servers
from boxd.sandbox.users import ServiceUsers
from boxd.service import Service
from tests.doubles.backend import FakeBackend
from tests.doubles.control_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.config import Config


def service(config: Config, *, serve: bool) -> Service:
    """Return a service whose parts run in this process."""
    config.state_dir.mkdir(exist_ok=True)
    host = local.LocalHost(config, lambda _: None, serve=serve)
    return Service(config, OperatorFiles.read(config, serve=serve), host, lambda _: None)


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

    async def servers(_: object) -> Servers:
        return Servers("", None)

    monkeypatch.setattr(local.LocalHost, "start_servers", servers)
    monkeypatch.setattr(Service, "_start_stores", stores)
    monkeypatch.setattr(local, "choose", choose)
    config = config_of(parser().parse_args(["serve", "--state-dir", str(tmp_path / "state")]))
    with pytest.raises(Unavailable, match="the fence does not hold"):
        await service(config, serve=serve).start(serve=serve)
    assert not backend.changed
    assert sizes == [None if serve else 0]


async def test_a_floor_of_free_space_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setup(_: object) -> None:
        raise Unavailable("the servers begin")

    monkeypatch.setattr(ServiceUsers, "setup", setup)
    state = str(tmp_path / "state")
    config = config_of(parser().parse_args(["serve", "--state-dir", state, "--min-free", "9999T"]))
    with pytest.raises(BadRequest, match=r"--min-free: .* MiB can never be free"):
        await service(config, serve=True).start()
    with pytest.raises(Unavailable, match="the servers begin"):  # `boxd down` asks not
        await service(config, serve=False).start(serve=False)
