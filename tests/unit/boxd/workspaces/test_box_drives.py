"""Grants of boxes that mount their drives themselves: created, loaded again and revoked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from box_guest import protocol
from boxd.errors import Conflict, Unavailable
from boxd.secret import Secret
from boxd.workspaces.box_drives import BoxDrives
from boxd.workspaces.gateway import Gateway
from boxd.workspaces.seal import Sealer
from tests.harness.wait import until
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.box import Box
    from boxd.tunnel.channel import Tunnel
    from tests.plugins.strict_logs import AssertLogs

STORE = StoreConfig("http://127.0.0.1:9", "b", "p" + "0" * 32, "r", "own", "s")
VOLUME = VolumeConfig("vol", "role", "postgresql://role:pw@/boxd?host=/nowhere", STORE)
UP = {"mounted": True, "error": "", "restarts": 0, "holders": [], "health": {}}
DOWN = {**UP, "mounted": False}


class Volumes:
    """One volume."""

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """There it is."""
        del owner, workspace
        return VOLUME

    async def all(self) -> list[VolumeConfig]:
        """It alone."""
        return [VOLUME]


class Issuer:
    """Counts credentials."""

    def __init__(self) -> None:
        self.keys = {"own": f"{STORE.prefix}/", "foreign": "elsewhere/"}
        self.down = False

    async def issue(self, prefix: str) -> tuple[str, Secret]:
        """The next one."""
        key = f"key{len(self.keys)}"
        self.keys[key] = f"{prefix}/"
        return key, Secret(f"secret of {key}")

    async def revoke(self, access_key: str) -> None:
        """Takes it away."""
        if self.down:
            raise Unavailable("no")
        self.keys.pop(access_key, None)

    async def credentials(self) -> list[tuple[str, str]]:
        """All."""
        return list(self.keys.items())


class Agent:
    """A tunnel whose agent answers as it is told, and the place where tunnels are got."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = dict.fromkeys(
            (protocol.DRIVE_MOUNT, protocol.DRIVE_INFO), UP
        )
        self.answers[protocol.DRIVE_UMOUNT] = DOWN
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.offered: list[str] = []
        self.refused = ""
        self.tried = False
        self.box_id = ""

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Itself."""
        del timeout
        self.box_id = box_id
        return cast("Tunnel", self)

    def peek(self, box_id: str) -> Tunnel | None:
        """Itself."""
        del box_id
        return cast("Tunnel", self)

    async def ask(self, kind: str, **fields: object) -> object:
        """The answer."""
        self.asked.append((kind, fields))
        return self.answers[kind]

    async def offer(self, path: str, taken: object) -> Agent:
        """Takes connections."""
        del taken
        if path == self.refused:
            self.tried = True
            raise Unavailable("the tunnel is gone")
        self.offered.append(path)
        return self

    def close(self) -> None:
        """Takes no more."""
        self.offered.clear()


class Place:
    """Drives below one directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.issuer, self.agent = Issuer(), Agent()
        self.directory = tmp_path / "grants"
        self._sealer = Sealer(tmp_path / "master.key")

    async def drives(self, shared_key: str = "") -> BoxDrives:
        """As a daemon has them that has just started."""
        drives = BoxDrives(
            Volumes(),
            self.agent,
            self.issuer,
            self._sealer,
            self.directory,
            shared_key=shared_key,
        )
        await drives.start()
        return drives

    @property
    def kept(self) -> list[str]:
        """Boxes whose grants are written down."""
        return [path.name for path in self.directory.iterdir()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place without any grants."""
    return Place(tmp_path)


async def test_a_grant_lasts_as_long_as_the_drive(place: Place, box: Box) -> None:
    drives = await place.drives()
    await drives.attach(box)
    assert place.agent.offered == [protocol.DRIVE_META, protocol.DRIVE_BLOCKS]
    (kind, fields), *_ = place.agent.asked
    given = protocol.drive_request({"type": kind, **fields})
    assert given["store"]["access_key"] == "key2"
    assert "pw" not in given["meta_dsn"]
    assert place.kept == [box.id]
    assert b"secret of" not in (place.directory / box.id).read_bytes()
    await drives.attach(box)
    assert place.agent.asked[1] == place.agent.asked[0]
    assert (await drives.info(box))["mounted"] is True
    await drives.detach(box)
    assert set(place.issuer.keys) == {"own", "foreign"}
    assert (place.kept, place.agent.offered) == ([], [])
    assert (await drives.info(box))["mounted"] is False


async def test_who_cannot_mount_holds_nothing(place: Place, box: Box) -> None:
    drives = await place.drives()
    place.agent.answers[protocol.DRIVE_MOUNT] = {**DOWN, "error": "no /dev/fuse\nat all"}
    with pytest.raises(Unavailable, match=r"does not mount its drive: no /dev/fuse\?at all"):
        await drives.attach(box)
    assert (set(place.issuer.keys), place.kept) == ({"own", "foreign"}, [])


@pytest.mark.parametrize("answer", [{}, {**UP, "restarts": "many"}, {**UP, "health": []}])
async def test_an_agent_that_talks_nonsense_holds_nothing(
    place: Place, box: Box, answer: object
) -> None:
    drives = await place.drives()
    place.agent.answers[protocol.DRIVE_MOUNT] = answer
    with pytest.raises(Unavailable, match="is malformed"):
        await drives.attach(box)
    assert (set(place.issuer.keys), place.kept) == ({"own", "foreign"}, [])


async def test_holders_are_named_and_keep_the_drive(place: Place, box: Box) -> None:
    drives = await place.drives()
    await drives.attach(box)
    place.agent.answers[protocol.DRIVE_UMOUNT] = {**UP, "holders": ["pid 7 (sh)"]}
    with pytest.raises(Conflict, match=r"in use by pid 7 \(sh\); cd elsewhere first"):
        await drives.detach(box)
    assert place.kept == [box.id]


async def test_the_next_daemon_finds_the_grant(place: Place, box: Box) -> None:
    first = await place.drives()
    await first.attach(box)
    await first.close()
    assert place.kept == [box.id]
    second = await place.drives()
    await second.attach(box)
    await second.release_unused(set())
    assert place.agent.asked[-1] == place.agent.asked[0]
    assert "key2" in place.issuer.keys


async def test_what_nobody_uses_ends(place: Place, box: Box, assert_logs: AssertLogs) -> None:
    await (await place.drives()).attach(box)
    place.issuer.keys["stray"] = f"{STORE.prefix}/"
    (place.directory / ("0" * 32)).write_bytes(b"nonsense")
    with assert_logs("a box's grant is lost"):
        drives = await place.drives()
    assert set(place.issuer.keys) == {"own", "foreign", "key2"}
    await drives.release_unused(set())
    assert (set(place.issuer.keys), place.kept) == ({"own", "foreign"}, [])


async def test_a_credential_that_could_not_be_ended_ends_later(
    place: Place, box: Box, assert_logs: AssertLogs
) -> None:
    drives = await place.drives()
    await drives.attach(box)
    place.issuer.down = True
    with assert_logs("credential not revoked"):
        await drives.forget(box)
    assert place.kept == [box.id]
    place.issuer.down = False
    await (await place.drives()).release_unused(set())
    assert (set(place.issuer.keys), place.kept) == ({"own", "foreign"}, [])


async def test_no_box_gets_a_credential_for_all_drives(place: Place, box: Box) -> None:
    drives = await place.drives(shared_key="key2")
    with pytest.raises(Unavailable, match="opens all drives"):
        await drives.attach(box)
    assert (place.kept, place.agent.asked) == ([], [])


async def test_a_new_tunnel_gets_the_way_again(place: Place, box: Box) -> None:
    drives = await place.drives()
    await drives.attach(box)
    other = Agent()
    other.box_id = box.id
    ways = [protocol.DRIVE_META, protocol.DRIVE_BLOCKS]
    for _ in range(2):
        drives.tunnel_up(cast("Tunnel", other))
        await until(lambda: other.offered == ways)
    await drives.close()
    assert other.offered == []


async def test_a_way_that_opens_by_half_is_closed(
    place: Place, box: Box, assert_logs: AssertLogs
) -> None:
    drives = await place.drives()
    place.agent.refused = protocol.DRIVE_BLOCKS
    with pytest.raises(Unavailable, match="the tunnel is gone"):
        await drives.attach(box)
    assert (place.agent.offered, place.kept) == ([], [])
    place.agent.refused = ""
    await drives.attach(box)
    other = Agent()
    other.box_id, other.refused = box.id, protocol.DRIVE_BLOCKS
    with assert_logs("drive not reachable: the tunnel is gone"):
        drives.tunnel_up(cast("Tunnel", other))
        await until(lambda: other.tried and not other.offered)


async def test_a_box_that_lost_its_drive_does_not_count_as_its_user(
    place: Place, box: Box, assert_logs: AssertLogs
) -> None:
    drives = await place.drives()
    await drives.attach(box)
    place.issuer.down = True
    with assert_logs("credential not revoked"):
        await drives.forget(box)
    place.issuer.down = False
    await drives.release_unused(set())
    assert (set(place.issuer.keys), place.kept) == ({"own", "foreign"}, [])


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        (replace(VOLUME, meta_dsn=f"{VOLUME.meta_dsn}&sslmode=require"), "without sslmode"),
        (replace(VOLUME, store=replace(STORE, endpoint="https://s3.example")), "not https"),
    ],
)
def test_stores_that_a_box_cannot_reach_are_named(volume: VolumeConfig, text: str) -> None:
    with pytest.raises(Unavailable, match=text):
        Gateway("box", volume, Secret("t"))
