"""Background commands: they run on after the connection ends, and are found again by their id."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from boxd_client._async.basis import pause
from boxd_client._async.streams import AsyncCommandStream
from boxd_client.errors import ConnectionLost, Unavailable
from boxd_client.events import CommandEvents
from boxd_client.models import CommandInfo, StoredOutput
from boxd_client.protocol import Request, Retry, json_request, model_of, segment

if TYPE_CHECKING:
    from boxd_client._async.basis import Content, Stream
    from boxd_client._async.transport import AsyncTransport
    from boxd_client.models import Dropped, Exit, Output


class AsyncCommand:
    """A background command of a box. `id` finds it again."""

    def __init__(self, transport: AsyncTransport, ref: str, command_id: str) -> None:
        self._transport = transport
        self._path = f"/v1/boxes/{segment(ref, 'box')}/commands/{segment(command_id, 'command')}"
        self.ref = ref
        self.id = command_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.ref}>"

    async def info(self) -> CommandInfo:
        """Return the state of the command."""
        answer = await self._transport.send(Request("GET", self._path, retry=Retry.SAFE))
        return model_of(answer, CommandInfo)

    def output(self, offset: int = 0) -> AsyncCommandStream:
        """Return the output from `offset` bytes on, and `Exit` once the command has ended.

        After the connection broke, the stream connects again and continues where it was.
        """
        return AsyncCommandStream(self._follow(offset))

    async def read(self, offset: int = 0, limit: int | None = None) -> StoredOutput:
        """Return the output that is stored now, from `offset` on, without waiting for more."""
        params = {"offset": offset, "follow": "false", "limit": limit}
        request = Request("GET", f"{self._path}/output", params, retry=Retry.SAFE)
        return model_of(await self._transport.send(request), StoredOutput)

    async def wait(self) -> int:
        """Wait for the end of the command and return its exit code."""
        code: int | None = None
        async with self.output((await self.info()).output_bytes) as events:
            async for _ in events:
                code = events.exit_code
        if code is None:
            raise ConnectionLost(f"command {self.id} has no exit code")
        return code

    async def write(self, content: Content, *, close: bool = False) -> None:
        """Write to the standard input of the command; with `close`, end the input after that."""
        request = Request("POST", f"{self._path}/stdin", {"close": close}, content=content)
        await self._transport.send(request)

    async def close_input(self) -> None:
        """End the standard input of the command."""
        request = Request("POST", f"{self._path}/stdin", {"close": True}, content=b"")
        await self._transport.send(request)

    async def signal(self, name: str = "TERM") -> None:
        """Send a signal to the processes of the command."""
        await self._transport.send(json_request("POST", f"{self._path}/signal", {"signal": name}))

    async def remove(self) -> None:
        """End the command if it runs, and remove it and its output."""
        await self._transport.send(Request("DELETE", self._path, retry=Retry.SAFE))

    async def _follow(self, offset: int) -> Stream[Output | Dropped | Exit]:
        decoder, last_id, failures = CommandEvents(), "", 0
        params = {"offset": offset or None}
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            request = Request("GET", f"{self._path}/output", params, headers)
            try:
                async with aclosing(self._transport.events(request, "exit")) as events:
                    async for event in events:
                        value = decoder.take(event)
                        if event.id is not None:
                            last_id = event.id
                        failures = 0
                        if value is not None:
                            yield value
                if decoder.exit is not None:
                    return
                raise ConnectionLost(f"the output of command {self.id} ended before the command")
            except (ConnectionLost, Unavailable) as error:
                failures += 1
                asked = error.retry_after if isinstance(error, Unavailable) else None
                wait = self._transport.policy.delay(failures, asked)
                if wait is None:
                    raise
            await pause(wait)
