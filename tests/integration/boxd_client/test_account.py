"""Boxes, snapshots, shares, workspaces, profiles, secrets, keys and questions, in both forms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from boxd_client import AsyncClient, Client, Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Callable[[Any], Any]], Any]

pytestmark = pytest.mark.timeout(300)


def test_the_account(client: Call) -> None:
    identity = client(lambda c: c.whoami())
    assert identity.fingerprint.startswith("SHA256:")
    assert identity.api_keys == 1
    assert "boxes" in {stat.what for stat in client(lambda c: c.stat())}
    assert [key.name for key in client(lambda c: c.keys.list())] == ["tests"]
    with pytest.raises(NotFound):
        client(lambda c: c.keys.remove("nothing"))


def test_a_box_from_its_creation_to_its_end(client: Call) -> None:
    box = client(lambda c: c.boxes.create("web", image="debian", deadline="2h", durable=True))
    assert box.ref == "web"
    info = client(lambda c: c.boxes.get("web"))
    assert (info.state, info.image, info.durable) == ("running", "debian", True)
    assert info.deadline is not None
    assert info.deadline > datetime.now(UTC)
    assert info.usage is not None
    assert client(lambda c: c.boxes.create("web")).ref == "web"
    assert client(lambda c: c.box("web").exists())
    assert client(lambda c: c.box("web").stat())
    assert client(lambda c: c.box("web").pin(600, "a test")).pin_why == "a test"
    with pytest.raises(Conflict, match="pinned"):
        client(lambda c: c.box("web").remove())
    assert client(lambda c: c.box("web").unpin()).pinned_until is None
    client(lambda c: c.box("web").remove())
    assert not client(lambda c: c.box("web").exists())
    with pytest.raises(InvalidRequest):
        client(lambda c: c.boxes.create("web", image="nothing"))


def test_a_box_of_a_spec_in_a_workspace(client: Call) -> None:
    assert client(lambda c: c.workspaces.create("api")).name == "api"
    box = client(lambda c: c.boxes.create("api/web:debian^2h"))
    assert box.ref == "api/web"
    assert client(lambda c: c.box("api/web").exec("hostname")).stdout == "web\n"
    assert [info.ref for info in client(lambda c: c.boxes.list("api"))] == ["api/web"]
    assert client(lambda c: c.boxes.create("api/web")).ref == "api/web"
    with pytest.raises(Conflict):
        client(lambda c: c.workspaces.remove("api"))
    client(lambda c: c.workspaces.remove("api", force=True))
    assert "api" not in {workspace.name for workspace in client(lambda c: c.workspaces.list())}


def test_temporary_boxes(url: str, key: str) -> None:
    with Client(url, key) as client:
        with client.temporary("debian") as box:
            assert box.exec("echo hi").stdout == "hi\n"
        with pytest.raises(NotFound):
            box.info()


async def test_asynchronous_temporary_boxes(url: str, key: str) -> None:
    async with AsyncClient(url, key) as client:
        async with client.temporary() as box:
            assert (await box.exec("echo hi")).stdout == "hi\n"
        assert not await box.exists()


def test_snapshots_and_forks(client: Call) -> None:
    client(lambda c: c.box("base").exec("echo one > /root/note"))
    assert client(lambda c: c.box("base").snapshot("before")).name == "before"
    client(lambda c: c.box("base").exec("echo two > /root/note"))
    assert [one.name for one in client(lambda c: c.box("base").snapshots())] == ["before"]
    assert "before" in {one.name for one in client(lambda c: c.boxes.snapshots())}
    copy = client(lambda c: c.box("base").fork("copy"))
    assert copy.ref == "copy"
    assert client(lambda c: c.box("copy").exec("cat note")).stdout == "two\n"
    old = client(lambda c: c.box("base").fork_snapshot("before", "old"))
    assert client(lambda c: c.box(old.ref).exec("cat note")).stdout == "one\n"
    assert client(lambda c: c.box("base").restore("before")).ref == "base"
    assert client(lambda c: c.box("base").exec("cat note")).stdout == "one\n"
    for name in [one.name for one in client(lambda c: c.box("base").snapshots())]:
        client(_snapshot_removal(name))
    for ref in ("base", "copy", "old"):
        client(_box_removal(ref))


def test_suspend_and_resume(client: Call) -> None:
    client(lambda c: c.box("dev").exec("true"))
    assert client(lambda c: c.box("dev").suspend()) == "suspended"
    assert client(lambda c: c.box("dev").resume()) == "running"


def test_shares(client: Call) -> None:
    client(lambda c: c.box("dev").exec("true"))
    share = client(lambda c: c.box("dev").share(3600))
    assert share.token
    assert share.token not in repr(share)
    assert [one.id for one in client(lambda c: c.box("dev").shares())] == [share.id]
    assert share.id in {one.id for one in client(lambda c: c.shares.list())}
    client(lambda c: c.shares.remove(share.id))
    assert client(lambda c: c.shares.list()) == []


def test_profiles(client: Call) -> None:
    profile = client(lambda c: c.profiles.set("quiet", "debian", egress="none", lifetime_s=300))
    assert (profile.name, profile.egress, profile.lifetime_s) == ("quiet", "none", 300)
    assert client(lambda c: c.profiles.get("quiet")).image == "debian"
    client(lambda c: c.workspaces.create("api"))
    assert client(lambda c: c.workspaces.set_profile("api", "quiet")).profile == "quiet"
    assert client(lambda c: c.workspaces.set_profile("api", None)).profile is None
    client(lambda c: c.workspaces.remove("api"))
    client(lambda c: c.box("dev").exec("echo hi > /root/note"))
    assert client(lambda c: c.profiles.build("lab", "dev")).name == "lab"
    assert {one.name for one in client(lambda c: c.profiles.list())} == {"lab", "quiet"}
    for name in ("lab", "quiet"):
        client(_profile_removal(name))


def test_secrets(client: Call) -> None:
    client(lambda c: c.secrets.set("TOKEN", "my-token"))
    assert [secret.name for secret in client(lambda c: c.secrets.list())] == ["TOKEN"]
    assert client(lambda c: c.box("dev").exec("echo $TOKEN")).stdout == "my-token\n"
    client(lambda c: c.secrets.remove("TOKEN"))
    assert client(lambda c: c.secrets.list()) == []


def test_the_agent(client: Call) -> None:
    agent = client(lambda c: c.agent.set("my-agent", "MY_TOKEN", "x", output_format="jsonl"))
    assert (agent.cmd, agent.env, agent.format) == ("my-agent", "MY_TOKEN", "jsonl")
    assert client(lambda c: c.agent.get()).cmd == "my-agent"
    client(lambda c: c.agent.remove())
    with pytest.raises(NotFound):
        client(lambda c: c.agent.get())


def test_questions(client: Call) -> None:
    ask = client(lambda c: c.asks.ask("Deploy?", ["yes", "no"]))
    assert ask.id in {one.id for one in client(lambda c: c.asks.list())}
    assert client(lambda c: c.asks.get(ask.id)).answer is None
    client(lambda c: c.asks.answer(ask.id, "yes"))
    assert client(lambda c: c.asks.wait(ask.id, 20)).answer == "yes"


def test_ports(client: Call) -> None:
    client(
        lambda c: c.box("dev").exec(
            "(setsid python3 -m http.server -b 127.0.0.1 8100 >/dev/null 2>&1 &)"
            "; until (exec 3<>/dev/tcp/127.0.0.1/8100) 2>/dev/null; do sleep 0.05; done"
        )
    )
    assert 8100 in {port.port for port in client(lambda c: c.box("dev").ports())}
    assert client(lambda c: c.box("dev").preview_url(8100)) is None
    with pytest.raises(NotFound, match="8101"):
        client(lambda c: c.box("dev").preview_url(8101))


def _snapshot_removal(name: str) -> Callable[[Any], Any]:
    return lambda c: c.box("base").remove_snapshot(name)


def _box_removal(ref: str) -> Callable[[Any], Any]:
    return lambda c: c.box(ref).remove()


def _profile_removal(name: str) -> Callable[[Any], Any]:
    return lambda c: c.profiles.remove(name)
