"""What is said when there is no engine, or one that cannot serve boxes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.docker.engine import Engine, ask
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

VERSION = {"ApiVersion": "1.41", "Version": "20.10.24"}
INFO = {"Driver": "overlay2", "CgroupDriver": "cgroupfs", "SecurityOptions": ["name=seccomp"]}


@asynccontextmanager
async def answering(
    path: Path, version: dict[str, Any], info: dict[str, Any], status: int = 200
) -> AsyncIterator[None]:
    """Something at a socket that answers every request like an engine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # whether somebody listens was all it wanted to know
            writer.close()
            return
        body = json.dumps(version if b"/version " in head else info).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield


async def test_an_engine_tells_what_it_is(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", VERSION, INFO):
        info = await ask(tmp_path / "s")
    assert (info.version, info.api) == ("20.10.24", "1.41")
    assert (info.storage_driver, info.cgroup_driver) == ("overlay2", "cgroupfs")


@pytest.mark.parametrize(
    ("version", "info", "text"),
    [
        ({"ApiVersion": "1.40", "Version": "19.03.1"}, {}, "19.03.1 with API 1.40; boxes need API"),
        ({"ApiVersion": ""}, {}, "with API unknown"),
        ({}, {"SecurityOptions": ["name=userns"]}, "userns-remap"),
        ({}, {"SecurityOptions": ["name=rootless"]}, "rootless"),
    ],
)
async def test_an_engine_that_cannot_serve_boxes_is_refused(
    tmp_path: Path, version: dict[str, Any], info: dict[str, Any], text: str
) -> None:
    async with answering(tmp_path / "s", VERSION | version, INFO | info):
        with pytest.raises(Unavailable, match=text):
            await ask(tmp_path / "s")


async def test_why_nobody_answers_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no such socket; start the engine.*--docker-socket"):
        await ask(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="no Docker engine at"):
        await ask(tmp_path / "file")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(tmp_path / "dead"))
    with pytest.raises(Unavailable, match="no process listens there"):
        await ask(tmp_path / "dead")


async def test_what_an_engine_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", {"message": "no more"}, {}, status=500):
        with pytest.raises(BoxdError, match="does not report its version: no more"):
            await ask(tmp_path / "s")


async def test_an_engine_that_was_not_reached_serves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not set up"):
        await Engine(tmp_path / "s").container("x")
