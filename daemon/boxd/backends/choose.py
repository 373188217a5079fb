"""Which backend makes the boxes of an installation: the operator chooses one for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.backends.docker import DockerBackend
from boxd.backends.runc import RuncBackend
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.interface import Backend
    from boxd.config import Config


def choose(config: Config) -> Backend:
    """The backend that `config.backend` names; not set up yet."""
    if config.backend == DockerBackend.name:
        return DockerBackend(config)
    return RuncBackend(config)


def refuse_foreign(config: Config, backends: Iterable[str]) -> None:
    """Raises Unavailable when `backends`, those of the existing boxes, are not the chosen one."""
    foreign = sorted(set(backends) - {config.backend})
    if foreign:
        raise Unavailable(
            f"{config.state_dir} holds boxes of the backend {' and '.join(foreign)}; start with "
            f"--backend {foreign[0]} (and remove them there if you want {config.backend}), "
            "or use another --state-dir"
        )
