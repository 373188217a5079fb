"""One box: its state, commands, files, terminals, ports, forks and snapshots."""

from __future__ import annotations

import json
import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd_client._sync.basis import pieces
from boxd_client._sync.commands import Command
from boxd_client._sync.files import BoxFiles
from boxd_client._sync.streams import (
    MAX_OUTPUT,
    CommandStream,
    WatchStream,
    command_events,
    watch_events,
)
from boxd_client._sync.terminal import open_terminal
from boxd_client.errors import InvalidRequest, NotFound, ProtocolError
from boxd_client.models import (
    BoxInfo,
    CommandInfo,
    Port,
    PortAnswer,
    Share,
    Snapshot,
    Stat,
)
from boxd_client.protocol import (
    Request,
    Retry,
    file_path,
    json_of,
    json_request,
    model_of,
    models_of,
    segment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from boxd_client._sync.basis import Content
    from boxd_client._sync.terminal import Terminal
    from boxd_client._sync.transport import Transport
    from boxd_client.models import Result
    from boxd_client.protocol import Answer

EXEC_TYPE = "application/x-svc-exec"
EXEC_S = 300
"""Seconds after which the service ends a command by default."""
MARGIN_S = 120.0
"""Seconds that the stream of a command may take in addition to the command."""
_SPEC = re.compile(r"[+!:^]")


class Box:
    """A box by its reference: `name`, or `workspace/name`. Creating the object sends nothing.

    `exec` and `stream` create the box if it does not exist, and wake it if it is suspended. All
    methods raise the errors of `boxd_client.errors`.
    """

    def __init__(self, transport: Transport, ref: str) -> None:
        if _SPEC.search(ref):
            raise InvalidRequest(f"{ref!r} is a spec; create such a box with boxes.create")
        self._transport = transport
        self._path = f"/v1/boxes/{segment(ref, 'box')}"
        self.ref = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}>"

    @property
    def files(self) -> BoxFiles:
        """Return the files of the box."""
        return BoxFiles(self._transport, f"{self._path}/files")

    def exec(
        self,
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: Content | None = None,
        timeout: int = EXEC_S,
        check: bool = False,
        limit: int = MAX_OUTPUT,
    ) -> Result:
        """Run a command in the login shell of the box and return its code and its output.

        `timeout`: seconds after which the service ends the command. With `check`, another code than
        0 raises CommandFailed. Output of more than `limit` bytes raises AnswerTooLarge.
        """
        result = self.stream(cmd, env=env, stdin=stdin, timeout=timeout).collect(limit)
        return result.check() if check else result

    def stream(
        self,
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: Content | None = None,
        timeout: int = EXEC_S,
    ) -> CommandStream:
        """Run a command and return a stream of its output. The command ends with the stream.

        All of `stdin` is sent before the first output is read. For a dialogue, use `start`.
        """
        header: dict[str, object] = {"cmd": cmd, "timeout_s": timeout}
        if env:
            header["env"] = dict(env)
        first = json.dumps(header).encode() + b"\n"
        content: object = first
        if isinstance(stdin, bytes | str):
            content = first + (stdin.encode() if isinstance(stdin, str) else stdin)
        elif stdin is not None:
            content = pieces(stdin, first)
        path = f"/v1/exec/{segment(self.ref, 'box')}"
        request = Request("POST", path, headers={"Content-Type": EXEC_TYPE}, content=content)
        return CommandStream(command_events(self._transport, request, timeout + MARGIN_S))

    def start(
        self,
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        timeout: int | None = None,
        stdin: bool = False,
        keep_awake: bool | None = None,
    ) -> Command:
        """Start a background command, which runs on after the connection ends.

        With `stdin`, its standard input is open for `write`. With `keep_awake`, the box stays awake
        while the command runs.
        """
        body = {
            "cmd": cmd,
            "env": dict(env) if env else None,
            "timeout_s": timeout,
            "stdin": stdin or None,
            "keep_awake": keep_awake,
        }
        request = json_request("POST", f"{self._path}/commands", body, retry=Retry.KEYED)
        info = model_of(self._transport.send(request), CommandInfo)
        return self.command(info.id)

    def command(self, command_id: str) -> Command:
        """Return the background command of an id. It sends nothing."""
        return Command(self._transport, self.ref, command_id)

    def commands(self) -> list[CommandInfo]:
        """Return the background commands of the box."""
        request = Request("GET", f"{self._path}/commands", retry=Retry.SAFE)
        return models_of(self._transport.send(request), CommandInfo)

    def watch(self, path: str, *, recursive: bool = False) -> WatchStream:
        """Return a stream of changes in a directory of the box. It begins with the first `next`.

        `recursive` includes the directories below it. The drive cannot be watched.
        """
        params = {"path": path, "recursive": recursive}
        request = Request("GET", f"{self._path}/watch", params)
        return WatchStream(watch_events(self._transport, request))

    @contextmanager
    def terminal(self, cols: int = 80, rows: int = 24) -> Iterator[Terminal]:
        """Open a login shell on a terminal; it ends with the context. The box must exist."""
        request = Request("GET", f"{self._path}/term", {"cols": cols, "rows": rows})
        settings, timeout = self._transport.settings, self._transport.timeout
        with open_terminal(settings, request, timeout) as terminal:
            yield terminal

    def info(self) -> BoxInfo:
        """Return the state of the box and its current use."""
        return model_of(self._send("GET", "", Retry.SAFE), BoxInfo)

    def exists(self) -> bool:
        """Return whether the box exists."""
        try:
            self.info()
        except NotFound:
            return False
        return True

    def remove(self, *, force: bool = False) -> None:
        """Remove the box with everything in it. A pinned box is removed only with `force`."""
        request = Request("DELETE", self._path, {"force": force}, retry=Retry.SAFE)
        self._transport.send(request)

    def suspend(self) -> str:
        """Save the memory of the box and stop its processes. Return its state."""
        return _state(self._json("POST", "/suspend"))

    def resume(self) -> str:
        """Wake the box. Return its state."""
        return _state(self._json("POST", "/resume"))

    def keep(self, *, off: bool = False) -> BoxInfo:
        """Make the box durable: the service removes it only at its deadline. `off` undoes that."""
        request = Request("POST", f"{self._path}/keep", {"off": off}, retry=Retry.SAFE)
        return model_of(self._transport.send(request), BoxInfo)

    def pin(self, seconds: int | None = None, why: str | None = None) -> BoxInfo:
        """Keep the box awake and protect it from removal for a time (default: 2 hours)."""
        body = {"for_s": seconds, "why": why}
        request = json_request("PUT", f"{self._path}/pin", body, retry=Retry.SAFE)
        return model_of(self._transport.send(request), BoxInfo)

    def unpin(self) -> BoxInfo:
        """Remove the pin."""
        return model_of(self._send("DELETE", "/pin", Retry.SAFE), BoxInfo)

    def fork(self, name: str) -> Box:
        """Copy the running box, with its memory, into a new one. Return the copy."""
        request = json_request("POST", f"{self._path}/fork", {"name": name}, retry=Retry.KEYED)
        info = model_of(self._transport.send(request), BoxInfo)
        return Box(self._transport, info.ref)

    @contextmanager
    def temporary_fork(self, name: str | None = None) -> Iterator[Box]:
        """Fork the box and remove the copy at the end of the context."""
        box = self.fork(name or f"fork-{secrets.token_hex(4)}")
        try:
            yield box
        finally:
            box.remove(force=True)

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of the box."""
        return models_of(self._send("GET", "/snapshots", Retry.SAFE), Snapshot)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Save the disk and the memory of the box."""
        request = json_request("POST", f"{self._path}/snapshots", {"name": name}, retry=Retry.KEYED)
        return model_of(self._transport.send(request), Snapshot)

    def restore(self, snapshot: str) -> BoxInfo:
        """Replace disk and memory of the box by those of a snapshot."""
        path = f"/snapshots/{segment(snapshot, 'snapshot')}/restore"
        return model_of(self._send("POST", path), BoxInfo)

    def fork_snapshot(self, snapshot: str, name: str) -> Box:
        """Create a new box from a snapshot."""
        path = f"{self._path}/snapshots/{segment(snapshot, 'snapshot')}/fork"
        request = json_request("POST", path, {"name": name}, retry=Retry.KEYED)
        info = model_of(self._transport.send(request), BoxInfo)
        return Box(self._transport, info.ref)

    def remove_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot."""
        self._send("DELETE", f"/snapshots/{segment(snapshot, 'snapshot')}", Retry.SAFE)

    def stat(self) -> list[Stat]:
        """Return use and limits of the box."""
        return models_of(self._send("GET", "/stat", Retry.SAFE), Stat)

    def ports(self) -> list[Port]:
        """Return the TCP ports on which programs in the box listen, and their preview URLs."""
        return models_of(self._send("GET", "/ports", Retry.SAFE), Port)

    def preview_url(self, port: int) -> str | None:
        """Return the URL that opens a port in a browser; None: the service has no previews.

        Raises NotFound if no program listens on the port.
        """
        for one in self.ports():
            if one.port == port:
                return one.url
        raise NotFound(f"no program in box {self.ref} listens on port {port}", 404)

    def port_url(self, port: int, path: str = "") -> str:
        """Return the URL of a port below the API. A request to it needs the API key."""
        return f"{self._transport.settings.url}{self._path}/proxy/{port}/{file_path(path)}"

    def request(
        self,
        port: int,
        method: str = "GET",
        path: str = "/",
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> PortAnswer:
        """Send an HTTP request to a program that listens on a port of the box.

        The answer has any status of the program. A status of 502 or 504 may be the service's.
        """
        place, _, query = path.partition("?")
        target = f"{self._path}/proxy/{port}/{file_path(place)}"
        request = Request(method, target, _pairs(query), headers or {}, content)
        statuses = tuple(range(200, 600))
        with self._transport.open(request, statuses) as body:
            content = body.collect(request.limit)
            return PortAnswer(body.status, dict(body.headers), content)

    def shares(self) -> list[Share]:
        """Return the shares of the box."""
        return models_of(self._send("GET", "/shares", Retry.SAFE), Share)

    def share(self, seconds: int | None = None) -> Share:
        """Let somebody else log in to the box. Only this answer has the token."""
        body = {"ttl_s": seconds}
        request = json_request("POST", f"{self._path}/shares", body, retry=Retry.KEYED)
        return model_of(self._transport.send(request), Share)

    def _send(self, method: str, path: str, retry: Retry = Retry.NEVER) -> Answer:
        return self._transport.send(Request(method, self._path + path, retry=retry))

    def _json(self, method: str, path: str) -> object:
        return json_of(self._send(method, path, Retry.SAFE))


def _state(body: object) -> str:
    if isinstance(body, dict) and isinstance(body.get("state"), str):
        return str(body["state"])
    raise ProtocolError("the answer has no state of the box")


def _pairs(query: str) -> dict[str, object]:
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: value for name, _, value in pairs}
