"""A proxy in front of PostgreSQL's Unix socket that cuts connections at chosen moments."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

if TYPE_CHECKING:
    from pathlib import Path

Moment = Literal["sent", "answered"]


class Wire:
    """Forwards connections. After `cut`, the next ones with a given text lose their answer.

    With "sent" the connection breaks right after the request went to the server. With "answered" it
    breaks after the server's whole answer, so the server has surely applied the call.
    """

    def __init__(self, dsn: str, directory: Path) -> None:
        parts = urlsplit(dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        port = query.get("port", "5432")
        self._upstream = f"{query['host']}/.s.PGSQL.{port}"
        self._path = directory / f".s.PGSQL.{port}"
        self.dsn = urlunsplit(parts._replace(query=urlencode({**query, "host": str(directory)})))
        self.cuts = 0
        self._left = 0
        self._needle = b""
        self._moment: Moment = "sent"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self, needle: bytes, times: int, moment: Moment) -> None:
        """Cut the next `times` requests that contain `needle`; b"" is any call of a function."""
        self._needle, self._left, self._moment = needle, times, moment

    async def up(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_unix_server(self._accept, self._path)

    async def down(self) -> None:
        """Refuse new connections and cut open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server_reader, server_writer = await asyncio.open_unix_connection(self._upstream)
        ends = (writer, server_writer)
        self._open.update(ends)
        lost = asyncio.Event()
        if self._server is None:
            # The proxy went down while this connection was opening.
            writer.transport.abort()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, server_writer, lost))
                group.create_task(self._answers(server_reader, writer, lost))
        finally:
            for end in ends:
                self._open.discard(end)
                end.transport.abort()
                with suppress(OSError):
                    await end.wait_closed()

    async def _requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                # Bind is the first message of a call, and of nothing else.
                wanted = self._needle in data if self._needle else data[:1] == b"B"
                hit = self._left > 0 and wanted
                if hit:
                    self._left -= 1
                    self.cuts += 1
                    lost.set()
                server.write(data)
                await server.drain()
                if hit and self._moment == "sent":
                    break
        if not lost.is_set() or self._moment == "sent":
            server.close()

    async def _answers(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await server.read(1 << 16):
                if lost.is_set():
                    # ReadyForQuery ends an answer: the transaction is then committed.
                    if self._moment == "sent" or data[-6:-1] == b"Z\0\0\0\5":
                        break
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
