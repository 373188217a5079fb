"""Chooses the backend of an installation. The operator selects one for all boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.backends.runc.backend import RuncBackend
from boxd.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.interface import Backend
    from boxd.config import Config


def choose(config: Config, existing: Iterable[str], *, serve: bool) -> Backend:
    """Return the backend that `config.backend` names, not set up yet.

    `existing` are the backends of existing boxes. With `serve`, all boxes must belong to the chosen
    backend; otherwise Unavailable names the flag to give. Without `serve`, boxes are only stopped,
    and the result is the backend of existing boxes. Raises BadRequest for a flag that the backend
    does not support.
    """
    foreign = sorted(set(existing) - {config.backend})
    if foreign and serve:
        raise Unavailable(
            f"{config.state_dir} holds boxes of the backend {' and '.join(foreign)}; start with "
            f"--backend {foreign[0]} (and remove them there if you want {config.backend}), "
            "or use another --state-dir"
        )
    if config.mount_in_box and config.backend != RuncBackend.name:
        raise BadRequest(f"--mount-in-box is only for --backend {RuncBackend.name}")
    name = foreign[0] if foreign else config.backend
    if name == RuncBackend.name:
        return RuncBackend(config)
    # The import of its client is slow (see CONTRIBUTING), so only its users import it.
    from boxd.backends.docker.backend import DockerBackend

    return DockerBackend(config)
