"""The guest socket accepts requests about removed files from root of the box only."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from box_guest import protocol
from tests.harness.agents.agent import BOX_ID

if TYPE_CHECKING:
    from tests.harness.agents.agent import LocalBox

NOBODY = 65534
LIST = {"type": "trash_list", "id": 1, "path": "", "cursor": None, "limit": 10}
RESTORE = {"type": "trash_restore", "id": 1, "path": "a", "number": None, "to": None}


def connect(path: Path, user_id: int) -> socket.socket:
    """Connect to the guest socket as a user. The kernel reports this user to the agent."""
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    before = os.geteuid()
    os.seteuid(user_id)
    try:
        client.connect(str(path))
    finally:
        os.seteuid(before)
    return client


async def answer(box: LocalBox, user_id: int, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the guest socket as a user of the box."""
    client = connect(box.guest_socket, user_id)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    async with asyncio.timeout(20):
        writer.write(protocol.encode(request))
        line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return protocol.decode(line)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
@pytest.mark.parametrize("request_", [LIST, RESTORE], ids=["list", "restore"])
async def test_only_root_reaches_the_trash(local_box: LocalBox, request_: dict[str, Any]) -> None:
    _open_directories(local_box.guest_socket)
    refusal = await answer(local_box, NOBODY, request_)
    assert refusal["ok"] is False
    assert refusal["error"].startswith("only root can list and restore removed files")
    assert local_box.requests == []
    assert (await answer(local_box, NOBODY, {"type": "life", "id": 2}))["ok"] is True
    local_box.requests.clear()
    assert (await answer(local_box, 0, request_))["ok"] is True
    parameters = {name: request_[name] for name in request_ if name not in ("type", "id")}
    assert local_box.requests == [(BOX_ID, request_["type"], parameters)]


async def test_requests_out_of_bounds_do_not_reach_the_daemon(local_box: LocalBox) -> None:
    for change in ({"path": "x" * 4097}, {"cursor": "x" * 1025}, {"limit": 201}):
        refusal = await answer(local_box, os.geteuid(), {**LIST, **change})
        assert refusal["ok"] is False
    assert local_box.requests == []
    assert local_box.misbehaviour == []


def _open_directories(path: Path) -> None:
    """Let all users pass the temporary directories above a path."""
    for directory in path.parents:
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o711)
