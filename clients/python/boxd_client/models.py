"""Values that the service returns, as frozen dataclasses.

Unknown members are ignored, so a newer service works with an older client. `raw` has the JSON
object as it arrived.
"""

from __future__ import annotations

import base64
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Self

from boxd_client.errors import BoxError, ProtocolError

_HINTS: dict[type, dict[str, Any]] = {}
"""The types of the fields of each class, once they were needed."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base class of values that are JSON objects."""

    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the value of a JSON object. Raises ProtocolError if it has another form."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected a JSON object for {cls.__name__}")
        hints = _hints(cls)
        members: dict[str, Any] = {}
        for one in fields(cls):
            if one.name == "raw":
                continue
            name = str(one.metadata.get("name", one.name))
            if name in value:
                place = f"{cls.__name__}.{name}"
                members[one.name] = _convert(value[name], hints[one.name], place)
            elif one.default is MISSING and one.default_factory is MISSING:
                raise ProtocolError(f"the answer has no {cls.__name__}.{name}")
        return cls(raw=value, **members)


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _convert(value: object, hint: object, place: str) -> object:
    """Return a JSON value in the type of a field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        options = [one for one in arguments if one is not type(None)]
        for option in options[:-1]:
            if isinstance(option, type) and type(value) is option:
                return value
        return _convert(value, options[-1], place)
    if origin is list and isinstance(value, list):
        return [_convert(one, arguments[0], place) for one in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): _convert(one, arguments[1], place) for key, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, Model):
        return hint.from_json(value)
    if hint is datetime and isinstance(value, str):
        return _time(value, place)
    if hint is float and type(value) in (int, float):
        return value
    if hint in (str, int, bool) and type(value) is hint:
        return value
    raise ProtocolError(f"{place} has a value of the wrong type")


def decode(text: str) -> bytes:
    """Return the bytes of base64 text. Raises ProtocolError."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ProtocolError("the output of a command is not base64") from None


def _time(text: str, place: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ProtocolError(f"{place} is not a time") from None
    if moment.tzinfo is None:
        raise ProtocolError(f"{place} has no time zone")
    return moment


@dataclass(frozen=True, kw_only=True)
class Usage(Model):
    """The host resources that a box uses. Sizes are in bytes, `cpu_s` in seconds."""

    at: datetime
    cpu_s: float = 0.0
    cpu_share: float | None = None
    memory_bytes: int = 0
    disk_bytes: int = 0
    pids: int = 0
    net_rx_bytes: int = 0
    net_tx_bytes: int = 0
    oom_kills: int = 0
    saved_memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Removal(Model):
    """The automatic removal of an unused box: its time, and `deadline` or `unused`."""

    at: datetime
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class BoxInfo(Model):
    """One box. `ref` addresses it: `name`, or `workspace/name`.

    `notes` are remarks for people on the creation of the box.
    """

    id: str
    name: str
    ref: str
    state: str
    image: str = ""
    workspace: str | None = None
    flavor: str = ""
    profile: str | None = None
    detail: str = ""
    age_s: float = 0.0
    cpus: float = 0.0
    mem_mb: int = 0
    disk_mb: int = 0
    created: datetime | None = None
    deadline: datetime | None = None
    removal: Removal | None = None
    durable: bool = False
    memory: bool = False
    pinned_until: datetime | None = None
    pin_why: str = ""
    egress: str = ""
    usage: Usage | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Snapshot(Model):
    """A snapshot of a box."""

    name: str = field(metadata={"name": "snapshot"})
    box: str
    workspace: str | None = None
    memory: bool = False
    image: str = ""
    flavor: str = ""
    size_bytes: int | None = None
    created: datetime | None = None
    box_removed: bool = False


@dataclass(frozen=True, kw_only=True)
class Stat(Model):
    """The use and the limit of one resource."""

    what: str
    unit: str = ""
    used: float | None = None
    limit: float | None = None
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Port(Model):
    """A TCP port on which a program in the box listens. `url`: where a browser opens it."""

    port: int
    address: str = ""
    url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Share(Model):
    """A share of a box. Only a new share has `token` and `ssh`."""

    id: str
    box: str | None = None
    box_id: str | None = None
    created: datetime | None = None
    expires: datetime | None = None
    last_used: datetime | None = None
    token: str | None = field(default=None, repr=False)
    ssh: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Workspace(Model):
    """A workspace. `name` is None for the default workspace."""

    name: str | None
    default: bool = False
    boxes: int = 0
    bytes: int = 0
    files: int = 0
    profile: str | None = None
    created: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Profile(Model):
    """Defaults of new boxes. `lifetime_s` and `deadline_s` are in seconds."""

    name: str
    image: str = ""
    flavor: str | None = None
    lifetime_s: float | None = None
    deadline_s: float | None = None
    egress: str | None = None
    durable: bool | None = None
    built_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class SecretName(Model):
    """The name of a secret. The service never returns values."""

    name: str
    tier: str = ""
    ws: str | None = None
    updated: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Key(Model):
    """An API key without its text. `scope`: the only workspace that it reaches, or None."""

    name: str
    scope: str | None = None
    created: datetime | None = None
    expires: datetime | None = None
    last_used: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Agent(Model):
    """The program that `delegate` runs."""

    cmd: str
    env: str = ""
    format: str = "text"
    updated: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Ask(Model):
    """A question to the owner. `state` is `open`, `answered` or another end."""

    id: str
    state: str
    question: str = ""
    options: list[str] = field(default_factory=list)
    box: str | None = None
    workspace: str | None = None
    answer: str | None = None
    created: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Identity(Model):
    """The account of the API key."""

    fingerprint: str
    tier: str = ""
    boxes: int = 0
    workspaces: list[str] = field(default_factory=list)
    api_keys: int = 0


@dataclass(frozen=True, kw_only=True)
class Entry(Model):
    """An entry of a directory. `encoded_name` is set if the name is not UTF-8."""

    name: str
    is_dir: bool
    size: int = 0
    mtime: Any = None
    mode: Any = None
    etag: str | None = None
    encoded_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Listing(Model):
    """One page of a directory. `next` is the cursor of the next page; None: the last page."""

    entries: list[Entry]
    next: str | None = None


@dataclass(frozen=True, kw_only=True)
class CommandInfo(Model):
    """A background command. `state` is `running`, `exited` or another end."""

    id: str
    box: str = ""
    cmd: str = ""
    state: str
    exit_code: int | None = None
    signal: int | str | None = None
    pid: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    output_bytes: int = 0
    dropped_bytes: int = 0
    stdin_open: bool = False
    keep_awake: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class StoredOutput(Model):
    """A part of the output of a background command. The next part begins at `next_offset`.

    `exit_code` is None while the command runs. `stdout_base64` and `stderr_base64` are as they
    arrived.
    """

    stdout_base64: str = field(default="", metadata={"name": "stdout"}, repr=False)
    stderr_base64: str = field(default="", metadata={"name": "stderr"}, repr=False)
    next_offset: int
    dropped_bytes: int = 0
    state: str = ""
    exit_code: int | None = None

    @property
    def stdout(self) -> bytes:
        """Return the bytes of the standard output."""
        return decode(self.stdout_base64)

    @property
    def stderr(self) -> bytes:
        """Return the bytes of the standard error."""
        return decode(self.stderr_base64)


@dataclass(frozen=True, kw_only=True)
class Change(Model):
    """A change below a watched directory. `source` is the earlier path of a moved file.

    The kind `overflow` has no path: changes were too many, and some are not reported.
    """

    kind: str
    path: str = ""
    is_dir: bool = False
    source: str | None = field(default=None, metadata={"name": "from"})


@dataclass(frozen=True)
class FileStat:
    """The size of a file in bytes, and its entity tag."""

    size: int
    etag: str | None


@dataclass(frozen=True)
class Output:
    """Bytes that a command wrote. `stream` is `stdout` or `stderr`.

    `text` is UTF-8, with U+FFFD for other bytes. It has complete characters: the rest follows.
    """

    stream: str
    data: bytes
    text: str


@dataclass(frozen=True)
class Dropped:
    """The service no longer has `count` bytes of the output at this place."""

    count: int


@dataclass(frozen=True)
class Exit:
    """The command ended. `code` is 124 after a timeout, and 128 plus the number of a signal."""

    code: int


@dataclass(frozen=True)
class BatchOutput:
    """Bytes that the command wrote in one of several boxes."""

    box: str
    stream: str
    data: bytes

    @property
    def text(self) -> str:
        """Return the bytes as UTF-8, with U+FFFD for other bytes."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class BatchExit:
    """The command ended in one of several boxes."""

    box: str
    code: int


@dataclass(frozen=True)
class BatchError:
    """The command did not run to its end in one of several boxes."""

    box: str
    status: int
    error: str


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command. `stdout_bytes` and `stderr_bytes` are exact."""

    exit_code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""

    @property
    def stdout(self) -> str:
        """Return the standard output as UTF-8, with U+FFFD for other bytes."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Return the standard error as UTF-8, with U+FFFD for other bytes."""
        return self.stderr_bytes.decode("utf-8", "replace")

    def check(self) -> Self:
        """Return the result itself. Raises CommandFailed if the exit code is not 0."""
        if self.exit_code != 0:
            last = self.stderr.strip().rpartition("\n")[2][:200]
            detail = f": {last}" if last else ""
            raise CommandFailed(f"the command ended with code {self.exit_code}{detail}", self)
        return self


class CommandFailed(BoxError):
    """A command ended with another code than 0. `result` has the code and the output."""

    def __init__(self, text: str, result: Result) -> None:
        super().__init__(text)
        self.result = result


@dataclass(frozen=True)
class PortAnswer:
    """The answer of a program that listens on a port of a box."""

    status: int
    headers: dict[str, str]
    body: bytes
