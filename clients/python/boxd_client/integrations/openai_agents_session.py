"""The session of a box in the OpenAI Agents SDK: commands, files, ports, and its workspace."""

from __future__ import annotations

import asyncio
import io
import json
import math
import shlex
import shutil
import tarfile
import tempfile
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Literal, cast
from urllib.parse import urlsplit

from agents.sandbox import (
    ExecResult,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortEndpoint,
    ExposedPortUnavailableError,
    User,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.errors import WorkspaceStartError
from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.mount_lifecycle import with_ephemeral_mounts_removed
from agents.sandbox.session.runtime_helpers import (
    RESOLVE_WORKSPACE_PATH_HELPER,
    RuntimeHelperScript,
)
from agents.sandbox.util.tar_utils import validate_tarfile
from agents.sandbox.workspace_paths import sandbox_path_str
from pydantic import Field

from boxd_client.errors import (
    BoxError,
    Conflict,
    ConnectionLost,
    NotFound,
    QuotaExceeded,
    ServiceError,
    Unavailable,
)
from boxd_client.models import Output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from boxd_client._async.box import AsyncBox
    from boxd_client._async.client import AsyncClient

Persistence = Literal["tar", "snapshot"]
MAX_EXEC_S = 86_400
"""Seconds of a command without a timeout: the longest time that the service allows."""
MARGIN_S = 10
"""Seconds after which the service ends a command that this side has given up."""
SPOOL = 8 * 1024 * 1024
"""Bytes of a workspace that are held in memory before they go to a temporary file."""
MAX_REFERENCE = 4096
_SNAPSHOT = b"BOXD_SNAPSHOT_V1\n"


class BoxdSandboxSessionState(SandboxSessionState):
    """The identity of the box of a session, and options of a replacement. It has no key."""

    type: Literal["boxd"] = "boxd"
    box: str
    box_id: str = ""
    owned: bool = False
    """Whether this session created the box. Only then it removes or suspends the box."""
    image: str | None = None
    flavor: str | None = None
    deadline: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    pause_on_exit: bool = False
    workspace_persistence: Persistence = "tar"


class BoxdSandboxSession(BaseSandboxSession):
    """A session of the SDK whose sandbox is a box."""

    state: BoxdSandboxSessionState

    def __init__(
        self,
        state: BoxdSandboxSessionState,
        connect: Callable[[], AsyncClient],
        client: AsyncClient | None = None,
    ) -> None:
        """`connect` makes a client of this session; it is not used if there is a `client`."""
        self.state = state
        self._connect = connect
        self._client = client
        self._shared = client is not None

    @property
    def client(self) -> AsyncClient:
        """Return the open client of the session."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    @property
    def box(self) -> AsyncBox:
        """Return the box of the session."""
        return self.client.box(self.state.box)

    async def attach(self, *, expected: bool) -> bool:
        """Wake the box, or create it. Return whether it is the one that the state describes.

        `expected`: the state is an earlier one, and an existing box may be its own.
        """
        box = self.box
        try:
            try:
                info = await box.info()
                await box.resume()
            except NotFound:
                await self._create()
                return False
        except BoxError:
            await self._close()
            raise
        preserved = expected and info.id == self.state.box_id
        if not preserved:
            self.state.box_id, self.state.owned = info.id, False
            self.state.workspace_root_ready = False
        return preserved

    async def _create(self) -> None:
        state = self.state
        box = await self.client.boxes.create(
            state.box, image=state.image, flavor=state.flavor, deadline=state.deadline
        )
        state.box, state.owned, state.workspace_root_ready = box.ref, True, False
        state.box_id = (await box.info()).id

    async def _close(self) -> None:
        if self._client is not None and not self._shared:
            client, self._client = self._client, None
            await client.aclose()

    # Life cycle.

    async def running(self) -> bool:
        """Return whether the box exists and is awake."""
        try:
            return (await self.box.info()).state == "running"
        except BoxError:
            return False

    async def _prepare_backend_workspace(self) -> None:
        root = self.state.manifest.root
        try:
            result = await self.box.exec(f"mkdir -p -- {shlex.quote(root)}")
        except BoxError as error:
            raise WorkspaceStartError(path=self._workspace_root_path(), cause=error) from error
        if result.exit_code != 0:
            context: dict[str, object] = {"box": self.state.box, "stderr": result.stderr[:4096]}
            raise WorkspaceStartError(path=self._workspace_root_path(), context=context)

    async def _shutdown_backend(self) -> None:
        if self.state.owned and self.state.pause_on_exit:
            # A box that cannot be suspended stays awake until the service stops it.
            with suppress(Conflict, NotFound):
                await self.box.suspend()
        elif self.state.owned:
            with suppress(NotFound):
                if (await self.box.info()).id == self.state.box_id:
                    await self.box.remove(force=True)

    async def _after_shutdown(self) -> None:
        await self._close()

    # Commands.

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        words = super()._prepare_exec_command(*command, shell=shell, user=None)
        if user:
            # Images have no sudo. Commands run as root, which needs none.
            name = user.name if isinstance(user, User) else user
            words = ["runuser", "-u", name, "--", *words]
        return words

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        words = [str(word) for word in command]
        text = f"cd -- {shlex.quote(self.state.manifest.root)} && exec {shlex.join(words)}"
        seconds = MAX_EXEC_S if timeout is None else math.ceil(timeout) + MARGIN_S
        env = {**self.state.env, **await self.state.manifest.environment.resolve()}
        try:
            # The command ends with its stream.
            async with asyncio.timeout(timeout):
                result = await self.box.exec(text, env=env, timeout=min(seconds, MAX_EXEC_S))
        except TimeoutError as error:
            raise ExecTimeoutError(command=words, timeout_s=timeout, cause=error) from error
        except BoxError as error:
            raise ExecTransportError(
                command=words,
                context={"box": self.state.box},
                cause=error,
                message=str(error),
                retryable=_retryable(error),
            ) from error
        return ExecResult(
            stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code
        )

    # Files.

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return the content of a file. Raises WorkspaceReadNotFoundError."""
        if user is None:
            place = await self._validate_path_access(path)
        else:
            place = await self._check_read_with_exec(path, user=user)
        try:
            return io.BytesIO(await self.box.files.read(sandbox_path_str(place)))
        except NotFound as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except BoxError as error:
            retryable = _retryable(error)
            raise WorkspaceArchiveReadError(path=path, cause=error, retryable=retryable) from error

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = await self._validate_path_access(path)
        buffer = bytearray()
        async with self.box.files.read_stream(sandbox_path_str(place)) as chunks:
            async for chunk in chunks:
                buffer += chunk[: max_bytes - len(buffer)]
                if len(buffer) == max_bytes:
                    break
        return bytes(buffer)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file and create missing parents."""
        if user is None:
            place = await self._validate_path_access(path, for_write=True)
        else:
            place = await self._check_write_with_exec(path, user=user)
        content = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
        try:
            await self.box.files.write(sandbox_path_str(place), bytes(content))
        except BoxError as error:
            retryable = _retryable(error)
            raise WorkspaceArchiveWriteError(path=path, cause=error, retryable=retryable) from error
        if user is not None:
            name = user.name if isinstance(user, User) else user
            await self._exec_checked_nonzero("chown", f"{name}:", "--", sandbox_path_str(place))

    # Ports.

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """Return the preview host of a port. Requests to it need the API key."""
        try:
            url = await self.box.preview_url(port)
            if url is None:
                raise NotFound("the service runs without previews; it needs --preview-domain")
            parts = urlsplit(url)
            host, number = parts.hostname, parts.port
        except (BoxError, ValueError) as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"box": self.state.box, "detail": str(error)},
                cause=error,
            ) from error
        tls = parts.scheme == "https"
        return ExposedPortEndpoint(host or "", number or (443 if tls else 80), tls)

    # The workspace as a whole.

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar, or a reference to a snapshot of the box."""
        return await with_ephemeral_mounts_removed(
            self,
            self._persist,
            error_path=self._workspace_root_path(),
            error_cls=WorkspaceArchiveReadError,
            operation_error_context_key="snapshot_error_before_remount_corruption",
        )

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fill the workspace from what `persist_workspace` returned."""
        with tempfile.SpooledTemporaryFile(SPOOL) as spool:
            shutil.copyfileobj(cast("IO[bytes]", data), spool)
            await with_ephemeral_mounts_removed(
                self,
                lambda: self._hydrate(cast("IO[bytes]", spool)),
                error_path=self._workspace_root_path(),
                error_cls=WorkspaceArchiveWriteError,
                operation_error_context_key="hydrate_error_before_remount_corruption",
            )

    async def _persist(self) -> io.IOBase:
        root = self._workspace_root_path()
        native = self.state.workspace_persistence == "snapshot"
        try:
            if native and not self._native_snapshot_requires_tar_fallback():
                snapshot = await self.box.snapshot()
                body = {"box": self.state.box, "snapshot": snapshot.name}
                return io.BytesIO(_SNAPSHOT + json.dumps(body).encode())
            return await self._packed()
        except BoxError as error:
            retryable = _retryable(error)
            raise WorkspaceArchiveReadError(path=root, cause=error, retryable=retryable) from error

    async def _packed(self) -> io.IOBase:
        skipped = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        excludes = [f"--exclude=./{path}" for path in skipped]
        root = self.state.manifest.root
        words = ["tar", "-C", root, "-cf", "-", "--anchored", "--no-wildcards", *excludes, "."]
        errors = bytearray()
        with ExitStack() as stack:
            spool = stack.enter_context(tempfile.SpooledTemporaryFile(SPOOL))
            async with self.box.stream(shlex.join(words), timeout=MAX_EXEC_S) as events:
                async for event in events:
                    if isinstance(event, Output) and event.stream == "stdout":
                        spool.write(event.data)
                    elif isinstance(event, Output):
                        errors += event.data[: 4096 - len(errors)]
                code = events.exit_code
            if code != 0:
                raise WorkspaceArchiveReadError(
                    path=self._workspace_root_path(),
                    context={"exit_code": code, "stderr": errors.decode("utf-8", "replace")},
                )
            stack.pop_all()  # the caller closes the file
        spool.seek(0)
        return cast("io.IOBase", spool)

    async def _hydrate(self, spool: IO[bytes]) -> None:
        root = self._workspace_root_path()
        spool.seek(0)
        try:
            if spool.read(len(_SNAPSHOT)) == _SNAPSHOT:
                await self._restore(spool.read(MAX_REFERENCE))
                return
            spool.seek(0)
            with tarfile.open(fileobj=spool, mode="r:") as tar:
                validate_tarfile(tar, allow_external_symlink_targets=False)
            spool.seek(0)
            quoted = shlex.quote(self.state.manifest.root)
            command = f"mkdir -p -- {quoted} && exec tar -C {quoted} -xf -"
            result = await self.box.exec(command, stdin=spool, timeout=MAX_EXEC_S)
        except (BoxError, tarfile.TarError, ValueError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error, message=str(error)) from error
        if result.exit_code != 0:
            context: dict[str, object] = {"stderr": result.stderr[:4096]}
            raise WorkspaceArchiveWriteError(path=root, context=context)

    async def _restore(self, text: bytes) -> None:
        """Replace the box by a snapshot: in place if it is the box's own, else by a fork of it."""
        reference = json.loads(text)
        if not isinstance(reference, dict):
            raise ValueError("the reference to the snapshot of a box is not an object")
        source, snapshot = str(reference.get("box")), str(reference.get("snapshot"))
        if source == self.state.box:
            try:
                await self.box.restore(snapshot)
            except Conflict:
                # The snapshot is of an earlier box of this name.
                if not self.state.owned:
                    raise
            else:
                return
        elif not self.state.owned:
            raise ValueError(f"the snapshot is one of box {source}, not of {self.state.box}")
        await self._replace(source, snapshot)

    async def _replace(self, source: str, snapshot: str) -> None:
        box = self.box
        original = self.client.box(source)
        await box.remove(force=True)
        fork = await original.fork_snapshot(snapshot, box.ref.rpartition("/")[2])
        self.state.box, self.state.box_id = fork.ref, (await fork.info()).id


def _retryable(error: BoxError) -> bool | None:
    """Return whether a retry may help; None: unknown, as after a broken connection."""
    if isinstance(error, Unavailable | QuotaExceeded):
        return True
    if isinstance(error, ConnectionLost):
        return None
    return False if isinstance(error, ServiceError) else None
