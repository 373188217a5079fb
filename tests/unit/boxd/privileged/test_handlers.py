"""What a front that somebody has taken over cannot ask of the helper."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from boxd.backends.interface import Capabilities
from boxd.errors import BadRequest, BoxdError, UnknownImage, Unsupported
from boxd.model.catalog import Flavor
from boxd.privileged import calls
from boxd.privileged.handlers import HANDLERS

if TYPE_CHECKING:
    from boxd.backends.interface import BoxPlan
    from boxd.privileged.calls import Call
    from boxd.privileged.local import LocalHost
    from wrkfs.config import VolumeConfig

ID = "0123456789abcdef" * 2
SCHEMA = f"v{ID}"
PLAN = calls.Plan(ID, "web", "debian", True, 1.0, 512, 100, 0, "all", False, "", False)


@dataclass
class Catalog:
    """One image and one flavor."""

    flavor: Flavor = field(default_factory=lambda: Flavor("small", "", 1.0, 512))

    def flavors(self) -> list[Flavor]:
        """Return the flavor."""
        return [self.flavor]

    def rootfs(self, name: str) -> Path:
        """Return a root for `debian`."""
        if name != "debian":
            raise UnknownImage(name)
        return Path("/images/debian")


class Backend:
    """Remembers plans; allows every kind."""

    def __init__(self) -> None:
        self.plans: list[BoxPlan] = []

    def capabilities(self) -> Capabilities:
        """Return those of runc."""
        return Capabilities(True, True, True, True, False, "")

    async def require_kind(self, runtime: str, *, containers: bool) -> None:
        """Allow it."""

    async def create(self, plan: BoxPlan) -> None:
        """Remember the plan."""
        self.plans.append(plan)

    async def clone(self, plan: BoxPlan, snapshot_id: str) -> None:
        """Remember the plan."""
        del snapshot_id
        self.plans.append(plan)

    async def attach_drive(self, box_id: str, source: Path) -> None:
        """Fail: no volume is mounted."""
        raise AssertionError(box_id, source)

    async def resume(self, box_id: str, drive: Path) -> None:
        """Fail: no volume is mounted."""
        raise AssertionError(box_id, drive)


class Mounts:
    """Mounts of one volume."""

    def __init__(self) -> None:
        self.asked: list[VolumeConfig] = []

    async def present(self) -> list[str]:
        """Return the volume."""
        return [ID]

    async def ensure(self, config: VolumeConfig) -> None:
        """Remember the call."""
        self.asked.append(config)


@dataclass
class Host:
    """The parts of a host that the handlers of these calls use."""

    backend: Backend = field(default_factory=Backend)
    catalog: Catalog = field(default_factory=Catalog)
    mounts: Mounts = field(default_factory=Mounts)
    dsn: str = "postgresql://boxd@/boxd?host=/state/postgres/socket"
    runtime: Path = Path("/runtime")

    @property
    def directories(self) -> Host:
        """Return what has the paths of run directories."""
        return self

    def path(self, box_id: str) -> Path:
        """Return the run directory of a box."""
        return Path("/boxes", box_id)

    def mount_point(self, volume: str) -> Path:
        """Return the mount point of a volume."""
        return Path("/mounts", volume)

    async def identity(self) -> str:
        """Return an identity that exists."""
        return ID


async def ask(host: Host, call: Call) -> object:
    """Carry out a call."""
    return await HANDLERS[type(call)](cast("LocalHost", host), call, [])


def with_changes(**changes: object) -> calls.Plan:
    """Return the plan with other values."""
    return msgspec.structs.replace(PLAN, **changes)


async def test_the_host_decides_the_paths_of_a_box() -> None:
    host = Host()
    await ask(host, calls.Create(PLAN))
    (plan,) = host.backend.plans
    assert (plan.rootfs, plan.runtime) == (Path("/images/debian"), Path("/runtime"))
    assert plan.run_dir == Path("/boxes", ID)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"containers": True}, Unsupported),
        ({"oci_runtime": "other"}, Unsupported),
        ({"in_catalog": False}, Unsupported),
        ({"image": "unknown"}, UnknownImage),
    ],
)
@pytest.mark.parametrize("kind", [calls.Create, calls.Clone])
async def test_no_box_has_rights_without_a_flavor(
    kind: type[Call], changes: dict[str, object], error: type[BoxdError]
) -> None:
    host = Host()
    plan = with_changes(**changes)
    call = calls.Create(plan) if kind is calls.Create else calls.Clone(plan, ID)
    with pytest.raises(error):
        await ask(host, call)
    assert not host.backend.plans


async def test_a_flavor_gives_its_rights() -> None:
    host = Host(catalog=Catalog(Flavor("docker", "", 1.0, 512, containers=True)))
    await ask(host, calls.Create(with_changes(containers=True)))
    assert len(host.backend.plans) == 1


async def test_only_a_mounted_volume_is_attached() -> None:
    host = Host()
    other = ID[::-1]
    for call in (calls.AttachDrive(ID, other), calls.Resume(ID, other)):
        with pytest.raises(BadRequest, match="has no mount on this host"):
            await ask(host, call)


@pytest.mark.parametrize("dsn", ["postgresql://v@/boxd?host=/etc", "postgresql://[v/boxd"])
async def test_a_volume_names_no_other_files_of_the_host(dsn: str) -> None:
    host = Host()
    with pytest.raises(BadRequest):
        await ask(host, calls.EnsureMount(ID, SCHEMA, dsn, "http://s3", "b", "p", "r", "k", "s"))
    assert not host.mounts.asked


async def test_a_volume_may_use_the_socket_of_the_database() -> None:
    host = Host()
    dsn = "postgresql://v:x@/boxd?host=/state/postgres/socket"
    await ask(host, calls.EnsureMount(ID, SCHEMA, dsn, "http://s3", "b", "p", "r", "k", "s"))
    assert [config.volume for config in host.mounts.asked] == [ID]


async def test_an_identity_stays() -> None:
    with pytest.raises(BadRequest, match="has an identity already"):
        await ask(Host(), calls.SetIdentity(ID[::-1]))


def test_the_credentials_of_a_mount_fit_into_a_pipe() -> None:
    most = {
        field.name: len(msgspec.json.encode("\x01")) - 2
        for field in msgspec.structs.fields(calls.EnsureMount)
    }
    assert max(most.values()) == 6
    limits = {"meta_dsn": 4096, "endpoint": 2048, "bucket": 255, "access_key": 256}
    longest = sum(limits.values()) + 256 + 64 + 1024 + 65
    assert longest * 6 + 1024 < 65_536
    for name, limit in limits.items():
        values = {"meta_dsn": "d", "endpoint": "e", "bucket": "b", "access_key": "k"}
        values[name] = "x" * (limit + 1)
        call = calls.EnsureMount(
            ID, SCHEMA, values["meta_dsn"], values["endpoint"], values["bucket"], "p", "r",
            values["access_key"], "s",
        )  # fmt: skip
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=calls.EnsureMount)
