"""Background commands and commands in several boxes, in both forms, before a real service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from boxd_client import (
    AsyncClient,
    BatchError,
    BatchExit,
    BatchOutput,
    Client,
    Conflict,
    Exit,
    NotFound,
    Output,
)
from tests.harness.clients.command import BoxCommand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = Callable[[Callable[[Any], Any]], Any]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def dev(url: str, key: str) -> None:
    """Create the box of these tests."""
    with Client(url, key) as client:
        client.box("dev").exec("true", check=True)


def test_a_command_outlives_its_client(client: Call) -> None:
    command_id = client(
        lambda c: c.box("dev").start("x=$(cat); echo got $x; exit 3", stdin=True)
    ).id
    assert command_id in {one.id for one in client(lambda c: c.box("dev").commands())}
    assert client(lambda c: c.box("dev").command(command_id).info()).state == "running"
    client(lambda c: c.box("dev").command(command_id).write("hello\n", close=True))
    assert client(lambda c: c.box("dev").command(command_id).wait()) == 3
    events = client(lambda c: c.box("dev").command(command_id).output())
    assert events == [Output("stdout", b"got hello\n", "got hello\n"), Exit(3)]
    stored = client(lambda c: c.box("dev").command(command_id).read(4))
    assert (stored.stdout, stored.exit_code, stored.next_offset) == (b"hello\n", 3, 10)
    with pytest.raises(Conflict):
        client(lambda c: c.box("dev").command(command_id).write("more"))
    client(lambda c: c.box("dev").command(command_id).remove())
    with pytest.raises(NotFound):
        client(lambda c: c.box("dev").command(command_id).info())


def test_a_signal(client: Call) -> None:
    command_id = client(lambda c: c.box("dev").start("sleep 1000")).id
    client(lambda c: c.box("dev").command(command_id).signal("KILL"))
    assert client(lambda c: c.box("dev").command(command_id).wait()) == 137
    client(lambda c: c.box("dev").command(command_id).remove())


def test_a_dialogue(url: str, key: str) -> None:
    with Client(url, key) as client:
        command = client.box("dev").start("while read x; do echo $((x + 1)); done", stdin=True)
        with command.output() as events:
            for number in (1, 10, 100):
                command.write(f"{number}\n")
                event = next(events)
                assert isinstance(event, Output)
                assert event.text == f"{number + 1}\n"
            command.close_input()
            assert next(events) == Exit(0)
        command.remove()


async def test_an_asynchronous_dialogue(url: str, key: str) -> None:
    async with AsyncClient(url, key) as client:
        command = await client.box("dev").start("cat", stdin=True)
        async with command.output() as events:
            await command.write(b"x" * 1_000_000, close=True)
            result = await events.collect()
        assert (result.exit_code, len(result.stdout)) == (0, 1_000_000)
        await command.remove()


def test_standard_input_of_the_command(url: str, key: str, tmp_path: Path) -> None:
    box = BoxCommand(tmp_path, {"BOXD_URL": url, "BOXD_API_KEY": key})
    data = bytes(range(256)) * 20_000
    assert box.run("run", "dev", "cat", stdin=data).stdout == data
    assert box.run("run", "dev", "head -c 3; exit 5", stdin=data, status=5).stdout == data[:3]
    command_id = box.text("run", "-d", "dev", "echo out; echo err >&2; exit 4").strip()
    assert box.run("logs", "-f", "dev", command_id, status=4).stdout == b"out\n"
    done = box.run("logs", "dev")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert command_id in box.text("ps", "dev")
    assert box.run("run", "new-box", "cat", stdin=b"hi").stdout == b"hi"
    command_id = box.text("run", "-d", "dev", "sleep 1000").strip()
    box.run("kill", "-s", "KILL", "dev", command_id)
    box.run("logs", "-f", "dev", command_id, status=137)


def test_changes_of_files(url: str, key: str) -> None:
    with Client(url, key) as client:
        client.box("dev").exec("mkdir -p /srv/watched")
        loop = "while sleep 0.1; do echo x >> /srv/watched/new; done"
        command = client.box("dev").start(loop)
        with client.box("dev").watch("/srv/watched") as changes:
            change = next(changes)
        command.remove()
    assert (change.path, change.is_dir) == ("/srv/watched/new", False)


async def test_changes_of_a_removed_directory(url: str, key: str) -> None:
    async with AsyncClient(url, key) as client:
        await client.box("dev").exec("mkdir -p /srv/gone")
        loop = "while sleep 0.1; do mkdir -p /srv/gone; touch /srv/gone/x; rm -r /srv/gone; done"
        command = await client.box("dev").start(loop)
        kinds = [change.kind async for change in client.box("dev").watch("/srv/gone")]
        await command.remove()
    assert set(kinds) <= {"created", "modified", "removed", "deleted", "attributes"}


def test_a_command_in_several_boxes(client: Call) -> None:
    events = client(lambda c: c.batch(["dev", "second", "No_Name"], "hostname; exit 2"))
    outputs = {event.box: event.text for event in events if isinstance(event, BatchOutput)}
    ends = {event.box: event.code for event in events if isinstance(event, BatchExit)}
    failures = {event.box for event in events if isinstance(event, BatchError)}
    assert outputs == {"dev": "dev\n", "second": "second\n"}
    assert ends == {"dev": 2, "second": 2}
    assert failures == {"No_Name"}
