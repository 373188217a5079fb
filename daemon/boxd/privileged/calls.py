"""The calls of the part that strangers reach to the part that needs root, and their answers.

A call names boxes, snapshots and volumes by id, and images by name. No call has a path. Decoding
checks every type, range and pattern; what does not fit ends the connection.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from boxd.backends.interface import Capabilities

IDS_MAX = 1000
"""Maximum number of ids in a call."""
Id: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""The id of a box, a snapshot or a volume."""
HostName: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,62}\Z")]
ImageName: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}\Z")]
Schema: TypeAlias = Annotated[str, Meta(pattern=r"\Av[0-9a-f]{32}\Z")]
Prefix: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._/-]{0,1023}\Z")]
Text: TypeAlias = Annotated[str, Meta(max_length=8192)]
Word: TypeAlias = Annotated[str, Meta(max_length=64)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]


class Call(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base class of all calls."""

    SENT: ClassVar[int] = 0
    """Number of descriptors that travel with the call."""


class BoxCall(Call, frozen=True):
    """Base class of calls about one box."""

    box_id: Id


class Plan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `boxd.backends.interface.BoxPlan` without its paths."""

    box_id: Id
    hostname: HostName
    image: ImageName
    in_catalog: bool
    """Whether the image is in the catalog; if not, only the backend knows it."""
    cpus: Annotated[float, Meta(gt=0, le=4096)]
    mem_mb: Annotated[int, Meta(ge=1, le=1 << 30)]
    pids: Annotated[int, Meta(ge=1, le=1 << 22)]
    disk_mb: Annotated[int, Meta(ge=0, le=1 << 40)]
    egress: Text
    template: bool
    oci_runtime: Word
    containers: bool


class Started(Struct, frozen=True, array_like=True):
    """The answer to `StartBoxes`."""

    backend: str
    capabilities: Capabilities
    runtime: str
    """The path of the guest runtime, which the other part only compares."""


class ServersStarted(Struct, frozen=True, array_like=True):
    """The answer to `StartServers`."""

    dsn: str
    endpoint: str | None
    """The URL of the embedded object server. None: a store of the operator."""
    bucket: str
    region: str
    user: int
    """The id of the front's user."""


class StartServers(Call, frozen=True):
    """Calls `Host.start_servers`. A second call returns the same answer."""


class StartBoxes(Call, frozen=True):
    """Calls `Host.start_boxes`. A second call returns the same answer."""

    existing: Annotated[list[Word], Meta(max_length=IDS_MAX)]


class Stop(Call, frozen=True):
    """Calls `Host.stop`."""

    everything: bool


class Identity(Call, frozen=True):
    """Calls `Host.identity`."""


class SetIdentity(Call, frozen=True):
    """Calls `Host.set_identity`."""

    value: Id


class AdminKeys(Call, frozen=True):
    """Calls `Host.admin_keys`."""


class Sanitise(Call, frozen=True):
    """Calls `Host.sanitise`. The document and the output travel as descriptors."""

    SENT = 2


class RequireKind(Call, frozen=True):
    """Calls `Backend.require_kind`."""

    runtime: Word
    containers: bool


class Create(Call, frozen=True):
    """Calls `Backend.create`."""

    plan: Plan


class Clone(Call, frozen=True):
    """Calls `Backend.clone`."""

    plan: Plan
    snapshot_id: Id


class Start(BoxCall, frozen=True):
    """Calls `Backend.start`."""


class AttachDrive(BoxCall, frozen=True):
    """Calls `Backend.attach_drive`. The source is the mount of the volume."""

    volume: Id


class DetachDrive(BoxCall, frozen=True):
    """Calls `Backend.detach_drive`."""


class StopBox(BoxCall, frozen=True):
    """Calls `Backend.stop`."""


class StateOfInit(BoxCall, frozen=True):
    """Calls `Backend.init_state`."""


class SuspectInits(Call, frozen=True):
    """Calls `Backend.suspect_inits`."""

    box_ids: Annotated[list[Id], Meta(max_length=IDS_MAX)]


class Destroy(BoxCall, frozen=True):
    """Calls `Backend.destroy`."""


class ListBoxes(Call, frozen=True):
    """Calls `Backend.list`."""


class Stats(BoxCall, frozen=True):
    """Calls `Backend.stats`."""


class OomKills(BoxCall, frozen=True):
    """Calls `Backend.oom_kills`."""


class TcpSocket(BoxCall, frozen=True):
    """Calls `Backend.tcp_socket`. The answer has a descriptor, or none."""

    family: Literal[2, 10]
    """AF_INET or AF_INET6."""


class Freeze(BoxCall, frozen=True):
    """Calls `Backend.freeze`."""


class SaveMemory(BoxCall, frozen=True):
    """Calls `Backend.save_memory`."""


class Thaw(BoxCall, frozen=True):
    """Calls `Backend.thaw`."""


class Resume(BoxCall, frozen=True):
    """Calls `Backend.resume`. The drive is the mount of a volume."""

    volume: Id | None


class Rename(BoxCall, frozen=True):
    """Calls `Backend.rename`."""

    hostname: HostName


class DiscardMemory(BoxCall, frozen=True):
    """Calls `Backend.discard_memory`."""


class Snapshot(BoxCall, frozen=True):
    """Calls `Backend.snapshot`."""

    snapshot_id: Id
    lasting: bool
    memory: bool


class SnapshotBytes(Call, frozen=True):
    """Calls `Backend.snapshot_bytes`."""

    snapshot_id: Id


class DropSnapshot(Call, frozen=True):
    """Calls `Backend.drop_snapshot`."""

    snapshot_id: Id


class Snapshots(Call, frozen=True):
    """Calls `Backend.snapshots`."""


class RestoreSnapshot(BoxCall, frozen=True):
    """Calls `Backend.restore_snapshot`."""

    snapshot_id: Id


class EnsureMount(Call, frozen=True):
    """Calls `Mounts.ensure`. The fields are those of `wrkfs.config.VolumeConfig`.

    Together they fit into the pipe to the mount process, whatever characters they have.
    """

    volume: Id
    schema: Schema
    meta_dsn: Annotated[str, Meta(max_length=4096)]
    endpoint: Annotated[str, Meta(max_length=2048)]
    bucket: Annotated[str, Meta(max_length=255)]
    prefix: Prefix
    region: Word
    access_key: Annotated[str, Meta(max_length=256)]
    secret_key: Annotated[str, Meta(max_length=256)]


class ReleaseMount(Call, frozen=True):
    """Calls `Mounts.release`."""

    volume: Id


class PresentMounts(Call, frozen=True):
    """Calls `Mounts.present`."""


class MountHealth(Call, frozen=True):
    """Calls `Mounts.health`."""

    volume: Id


class OpenJournals(Call, frozen=True):
    """Calls `Journals.open`. The answer has a descriptor of the directory."""

    volume: Id
    schema: Schema


class WriteDirectory(BoxCall, frozen=True):
    """Calls `RunDirectories.write`."""

    config: Text
    private_key: Annotated[bytes, Meta(max_length=8192)]


class DirectoryExists(BoxCall, frozen=True):
    """Calls `RunDirectories.exists`."""


class DirectoryIds(Call, frozen=True):
    """Calls `RunDirectories.box_ids`."""


class RemoveDirectory(BoxCall, frozen=True):
    """Calls `RunDirectories.remove`."""


class Bind(BoxCall, frozen=True):
    """Calls `BoxDirectories.bind`. The answer has a descriptor."""


class Issue(Call, frozen=True):
    """Calls `CredentialIssuer.issue`. The answer is the access key and the secret."""

    prefix: Prefix


class Revoke(Call, frozen=True):
    """Calls `CredentialIssuer.revoke`."""

    access_key: Annotated[str, Meta(max_length=256)]


class Credentials(Call, frozen=True):
    """Calls `CredentialIssuer.credentials`."""


AnyCall: TypeAlias = (
    StartServers | StartBoxes | Stop | Identity | SetIdentity | AdminKeys | Sanitise
    | RequireKind | Create | Clone | Start | AttachDrive | DetachDrive | StopBox | StateOfInit
    | SuspectInits | Destroy | ListBoxes | Stats | OomKills | TcpSocket | Freeze | SaveMemory
    | Thaw | Resume | Rename | DiscardMemory | Snapshot | SnapshotBytes | DropSnapshot | Snapshots
    | RestoreSnapshot | EnsureMount | ReleaseMount | PresentMounts | MountHealth | OpenJournals
    | WriteDirectory | DirectoryExists | DirectoryIds | RemoveDirectory | Bind | Issue | Revoke
    | Credentials
)  # fmt: skip
"""Every call."""
CALLS: tuple[type[Call], ...] = AnyCall.__args__
