"""The administrator's Unix socket: each line is a JSON object and gets one line as its answer.

    {"op": "add", "access_key": "...", "secret": "...", "prefix": "abc/"}
    {"op": "revoke", "access_key": "..."}
    {"op": "list"}
    {"op": "status"}

Answers are `{"ok": true, ...}` or `{"error": "..."}`. A change is durable and in force before its
answer is sent. The socket has mode 0600 and accepts commands only from the server's own user and
from root.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from objectserver.keys import Credential
from objectserver.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path

    from objectserver.keys import KeyTable

_PEER = struct.Struct("3i")
MAX_LINE = 64 * 1024
"""Maximum length of a command, in bytes."""


class Admin:
    """Serves the socket. Critical sections: none; commands run without await."""

    def __init__(self, keys: KeyTable, status: dict[str, object]) -> None:
        self._keys = keys
        self._status = status
        self._server: asyncio.Server | None = None

    async def start(self, directory: Path, name: str) -> None:
        """Listen at `directory/name`. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (directory / name).unlink(missing_ok=True)
            # Through the descriptor, the path is short however deep the directory is.
            listener.bind(f"/proc/self/fd/{descriptor}/{name}")
            (directory / name).chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listener, limit=MAX_LINE
            )
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(descriptor)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = writer.get_extra_info("socket")
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(raw)[1] not in (0, os.geteuid()):
                return
            while line := await reader.readline():
                writer.write(json.dumps(self._run(line)).encode("utf-8") + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the client disconnected, or its line is too long: only this connection ends
        finally:
            writer.close()

    def _run(self, line: bytes) -> dict[str, Any]:
        try:
            command = json.loads(line)
            match command["op"]:
                case "add":
                    access_key, secret, prefix = (
                        _text(command[name]) for name in ("access_key", "secret", "prefix")
                    )
                    self._keys.add(Credential(access_key, Secret(secret), prefix))
                    return {"ok": True}
                case "revoke":
                    return {"ok": True, "found": self._keys.remove(command["access_key"])}
                case "list":
                    return {"ok": True, "keys": self._keys.rows()}
                case "status":
                    return {"ok": True, **self._status}
                case _:
                    return {"error": "unknown operation"}
        except (KeyError, TypeError, ValueError, AttributeError):
            return {"error": "malformed command"}
        except OSError as error:
            return {"error": error.strerror or "the disk reported an error"}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value
