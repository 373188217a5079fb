"""A box as the backend of a Deep Agent. It needs the extra `deepagents`.

::

    from boxd_client import Client
    from boxd_client.integrations.deepagents import BoxBackend
    from deepagents import create_deep_agent

    with Client() as client, client.temporary() as box:
        agent = create_deep_agent(model, backend=BoxBackend(box))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd_client._sync.box import EXEC_S
from boxd_client.errors import BoxError, Forbidden, NotFound
from boxd_client.models import Dropped, Output

try:
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as error:
    raise ImportError(
        "boxd_client.integrations.deepagents needs the package deepagents; "
        "run: pip install 'boxd-client[deepagents]'"
    ) from error

if TYPE_CHECKING:
    from boxd_client._sync.box import Box

MAX_TIMEOUT_S = 86_400
MAX_OUTPUT = 4 * 1024 * 1024
"""Most output of one command that the agent gets, in bytes. The rest is dropped."""


class BoxBackend(BaseSandbox):
    """A backend for `create_deep_agent` that is a box. The box needs `python3` and a POSIX shell.

    The backend neither creates nor removes the box. A box that does not exist is created by the
    first command. Commands raise the errors of `boxd_client.errors`.
    """

    enable_capture_offload = True

    def __init__(
        self,
        box: Box,
        *,
        timeout: int = EXEC_S,
        workdir: str | None = None,
        limit: int = MAX_OUTPUT,
    ) -> None:
        """`timeout`: seconds of a command that sets none. `workdir`: where commands begin."""
        self._box = box
        self._timeout = timeout
        self._workdir = workdir
        self._limit = limit

    @property
    def id(self) -> str:
        """Return the reference of the box."""
        return self._box.ref

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command and return its exit code and its output, with errors where they occurred.

        `timeout`: seconds after which the service ends the command, with the exit code 124. 0 means
        the longest time that the service allows, one day.
        """
        seconds = self._timeout if timeout is None else timeout or MAX_TIMEOUT_S
        if self._workdir is not None:
            command = f'cd -- "$BOXD_WORKDIR" && unset BOXD_WORKDIR || exit 1\n{command}'
        env = None if self._workdir is None else {"BOXD_WORKDIR": self._workdir}
        buffer, truncated = bytearray(), False
        with self._box.stream(command, env=env, timeout=seconds) as events:
            for event in events:
                if isinstance(event, Output):
                    rest = self._limit - len(buffer)
                    truncated = truncated or len(event.data) > rest
                    buffer += event.data[:rest]
                elif isinstance(event, Dropped):
                    truncated = True
            code = events.exit_code
        return ExecuteResponse(buffer.decode("utf-8", "replace"), code, truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files and create missing parents. Each answer has its own error."""
        return [FileUploadResponse(path, self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files. Each answer has its own error."""
        return [self._read(path) for path in paths]

    def _write(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._box.files.write(path, content)
        except BoxError as error:
            return _reason(error)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        try:
            return FileDownloadResponse(path, self._box.files.read(path))
        except BoxError as error:
            return FileDownloadResponse(path, error=_reason(error))


def _reason(error: BoxError) -> str:
    """Return the word of the protocol for an error, or its text if there is none."""
    if isinstance(error, NotFound):
        return "is_directory" if "is a directory" in str(error) else "file_not_found"
    if isinstance(error, Forbidden):
        return "permission_denied"
    return str(error)
