"""Which backend makes the boxes of an installation: the operator chooses one for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.backends.runc import RuncBackend
from boxd.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.interface import Backend
    from boxd.config import Config


def choose(config: Config, existing: Iterable[str], *, serve: bool) -> Backend:
    """The backend that `config.backend` names; not set up yet.

    `existing` are the backends of the boxes that there are. To `serve`, all must be of the chosen
    one, else Unavailable names the flag to give; who only stops them gets theirs. BadRequest for a
    flag that the backend does not have.
    """
    foreign = sorted(set(existing) - {config.backend})
    if foreign and serve:
        raise Unavailable(
            f"{config.state_dir} holds boxes of the backend {' and '.join(foreign)}; start with "
            f"--backend {foreign[0]} (and remove them there if you want {config.backend}), "
            "or use another --state-dir"
        )
    if config.mount_in_box and config.backend != RuncBackend.name:
        raise BadRequest(f"--mount-in-box is for --backend {RuncBackend.name}")
    name = foreign[0] if foreign else config.backend
    if name == RuncBackend.name:
        return RuncBackend(config)
    # Its client takes long to load (see CONTRIBUTING): only who uses it waits for that.
    from boxd.backends.docker import DockerBackend

    return DockerBackend(config)
