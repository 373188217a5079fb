"""A whole service to try credentials on: HTTP API and SSH front door over one core.

Clients, sockets, SSH and the agent's program are real. The backend is the fake one: it creates,
suspends and forks boxes at once, and tests can inspect each effect. One agent process serves all
boxes. Stores are in memory, and only the test moves the clock.

There are three owners. Alice has boxes, files and every other kind of object in her default
workspace, in ws1 and in ws2. Bob has a few objects with the same names. An administrator has none.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import asyncssh

from box_guest import protocol
from boxd.config import Address, Config
from boxd.errors import Conflict
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer
from boxd.mcp.service import McpService
from boxd.principal import Principal
from boxd.secret import Secret
from boxd.ssh.cli.registry import build_console
from boxd.ssh.connection.listener import SshListener
from boxd.ssh.connection.listener_state import ListenerSettings
from boxd.workspaces.drive import Condition, Directory, Drive
from tests.harness.agents.agent import local_agent
from tests.harness.http.portserver import listening
from tests.harness.http.rawhttp import ask
from tests.harness.http.web import MemoryDrives
from tests.harness.simulation.world import FakeTunnels, World
from wrkfs.upkeep import copies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.tunnel.channel import Tunnel
    from tests.doubles.control_store import MemoryStore
    from tests.harness.http.portserver import Visit
    from tests.harness.http.rawhttp import Answer, Request

WORKSPACES = (None, "ws1", "ws2")
FILE = b"file"
REMOVED = b"marked removed"
"""A file in the trash of each drive."""
SNAPSHOT = b"kept"
"""A snapshot of each of Alice's drives."""
WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The GUID that a WebSocket server appends to the client's key before it hashes the key."""
SAYS_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
PEOPLE = ("alice", "bob", "admin")
PREVIEW_DOMAIN = "preview.test"
UNSTORED = {"last_used", "last_seen", "idle_since", "since", "step", "updated", "detail"}
"""Fields that change when a client reads them, or when related objects change."""


class OneAgent(FakeTunnels):
    """Tunnels that all lead to one agent, while their box runs."""

    agent: Tunnel

    async def get(self, box_id: str, timeout: float = 30) -> Tunnel:
        """Return the agent's tunnel if the box runs and answers."""
        await super().get(box_id, timeout)
        return self.agent


class House(World):
    """The service of this module. `files` holds the drives that HTTP reaches."""

    def __init__(self, root: Path, agent: Tunnel) -> None:
        self.agent = agent
        self.files = MemoryDrives()
        super().__init__(root, suspends=True, automount=False)

    def _make_daemon(self) -> None:
        super()._make_daemon()
        self.use_drives(self.files)
        # The lifecycle holds the fake's proxy, so the object behind the proxy gets the agent.
        self.tunnels.__class__ = OneAgent
        cast("OneAgent", self.tunnels).agent = self.agent


@dataclass
class Person:
    """An owner with an SSH key, and the owner's API keys by their special property."""

    name: str
    key: asyncssh.SSHKey
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Return the fingerprint of the key."""
        return self.key.get_fingerprint("sha256")

    @property
    def principal(self) -> Principal:
        """Return the principal of an SSH login."""
        return Principal(self.owner, None, "ssh_key")


@dataclass(frozen=True)
class Typed:
    """The end of a command over SSH; `status` is None if the server rejected the login."""

    status: int | None
    stdout: str
    stderr: str


@dataclass
class Furnished:
    """A house with all its initial objects, and its two interfaces."""

    house: House
    api: Api
    http: Address
    door: SshListener
    people: dict[str, Person]
    app: int
    """The port on which a server in every box answers ok."""
    shares: dict[str, str] = field(default_factory=dict)
    """Share tokens by their special property."""
    connections: dict[tuple[str, str], asyncssh.SSHClientConnection] = field(default_factory=dict)

    @property
    def alice(self) -> Person:
        """Return Alice, the owner with objects."""
        return self.people["alice"]

    async def box_id(self, ref: str, whose: str = "alice") -> str:
        """Return the id of a box."""
        boxes = await self.house.store.boxes(self.people[whose].owner)
        return next(box.id for box in boxes if box.ref == ref)

    async def cookie(self, ref: str, port: int, host: str | None = None) -> str:
        """Return the cookie that Alice's browser gets at its first visit to a port of her box."""
        operations = self.house.operations
        p = await operations.keys.principal_of_key(self.alice.keys["account"])
        box = await operations.directory.resolve(p, ref)
        return (await operations.preview_sessions.open_proxy_session(p, box, port, host)).reveal()

    async def ask(self, request: Request) -> Answer:
        """Send one request to the HTTP API."""
        return await ask(self.http.host, self.http.port, request)

    async def type(self, who: str | None, user: str, line: str | None, stdin: str = "") -> Typed:
        """Run one command over SSH and reuse connections.

        If `who` is None, the client has no key.
        """
        try:
            connection = await self._connection(who, user)
            done = await connection.run(line, input=stdin or None, check=False)
        except asyncssh.PermissionDenied as error:
            return Typed(None, "", error.reason)
        return Typed(done.exit_status, str(done.stdout), str(done.stderr))

    async def _connection(self, who: str | None, user: str) -> asyncssh.SSHClientConnection:
        place = (who or "", user)
        if place not in self.connections:
            self.connections[place] = await self.connect(who, user)
        return self.connections[place]

    async def connect(self, who: str | None, user: str) -> asyncssh.SSHClientConnection:
        """Open a new connection."""
        options: dict[str, Any] = {
            "config": None,
            "username": user,
            "known_hosts": None,
            "agent_path": None,
            "client_keys": [self.people[who].key] if who else [],
            "password": None if who else "guess",
        }
        return await asyncssh.connect("127.0.0.1", self.door.port, **options)

    async def picture(self) -> dict[tuple[str, str, str], object]:
        """Return all objects: (kind, owner, name) and content.

        Ids, and times that any activity updates, are left out.
        """
        store = cast("MemoryStore", self.house.store)
        found: dict[tuple[str, str, str], object] = {}
        for box in store._boxes.values():
            host = await self.house.backend.look(box.id)
            found["box", box.owner, box.ref] = _content(box) | {"host": host}
        for one in store._snapshots.values():
            found["snapshot", one.owner, f"{one.ref}:{one.name}"] = _content(one)
        for owner, name in store._profiles:
            found["profile", owner, name] = _content(store._profiles[owner, name])
        for key, _ in store._keys.values():
            found["key", key.owner, key.name] = _content(key)
        for owner, name in store._workspaces:
            found["workspace", owner, name] = _content(store._workspaces[owner, name])
        for share, _ in store._shares.values():
            found["share", share.owner, share.id] = _content(share)
        for session, _ in store._proxy_sessions.values():
            found["session", session.owner, session.id] = _content(session)
        for place, secret in store._secrets.items():
            found["secret", secret.owner, repr(place)] = secret
        for owner, agent in store._agents.items():
            found["agent", owner, ""] = agent
        for ask_id, question in store._asks.items():
            found["ask", question.owner, ask_id] = _content(question)
        for owner, account in store._accounts.items():
            found["account", owner, ""] = _content(account)
        for account_key in store._account_keys.values():
            name = account_key.fingerprint
            found["account key", account_key.owner, name] = _content(account_key)
        for owner in set(store._recovery_codes.values()):
            codes = {code for code, whose in store._recovery_codes.items() if whose == owner}
            found["recovery codes", owner, ""] = codes
        for audit in store._audits.values():
            found["audit", audit.admin, audit.id] = None
        for (owner, scope, canvas_id), canvas in store._canvases.items():
            found["canvas", owner, f"{scope}:{canvas_id}"] = canvas
        found["drain", "", ""] = self.house.access_policy.draining
        for (owner, workspace), volume in self.files.volumes.items():
            for path, content in await _tree(Drive(volume.fs), b""):
                found["file", owner, f"{workspace}:{path!r}"] = content
            for snapshot in await volume.fs.snapshots():
                found["snapshot", owner, f"{workspace}:{snapshot.name!r}"] = None
        return found

    @property
    def files(self) -> MemoryDrives:
        """Return the drives."""
        return self.house.files


async def _tree(drive: Drive, path: bytes) -> list[tuple[bytes, str]]:
    """Return all paths below a directory, with the entity tag of a file, or "" of a directory."""
    found = []
    async with drive.at(path) as directory:
        assert isinstance(directory, Directory)
        entries = await drive.entries(directory)
    for entry in entries:
        place = path + b"/" + entry.name
        if entry.is_dir:
            found += [(place, ""), *await _tree(drive, place)]
            continue
        async with drive.at(place) as file:
            assert not isinstance(file, Directory)
            found.append((place, file.tag))
    return found


def _content(row: object) -> dict[str, object]:
    names = getattr(type(row), "__slots__", ())
    left_out = UNSTORED | {"id", "box_id", "created", "expires", "host_key"}
    return {name: getattr(row, name) for name in names if name not in left_out}


def ssh_keys() -> dict[str, asyncssh.SSHKey]:
    """Return a new key for each person."""
    return {name: asyncssh.generate_private_key("ssh-ed25519") for name in PEOPLE}


def changes(
    before: dict[tuple[str, str, str], object], after: dict[tuple[str, str, str], object]
) -> dict[tuple[str, str, str], str]:
    """Return the changes between two pictures by object: `made box`, `removed key` ..."""
    found = {}
    for thing in before.keys() | after.keys():
        if thing not in before:
            found[thing] = f"made {thing[0]}"
        elif thing not in after:
            found[thing] = f"removed {thing[0]}"
        elif before[thing] != after[thing]:
            found[thing] = _change(thing[0], before[thing], after[thing])
    return found


def _change(kind: str, before: object, after: object) -> str:
    if kind == "box" and isinstance(before, dict) and isinstance(after, dict):
        state = str(after["state"])
        return state if state != before["state"] else "changed box"
    return f"changed {kind}"


async def _furnish(furnished: Furnished) -> None:
    """Create the initial objects of all owners."""
    house, operations = furnished.house, furnished.house.operations
    alice, bob, admin = (furnished.people[name] for name in ("alice", "bob", "admin"))

    async def key(person: Person, name: str, scope: str | None, ttl: timedelta | None) -> None:
        if scope is not None:
            with suppress(Conflict):
                await operations.workspaces.create_workspace(person.principal, scope)
        made = await operations.keys.create_key(person.principal, name, scope=scope, ttl=ttl)
        person.keys[name] = made[1].reveal()

    await key(alice, "expired", None, timedelta(seconds=1))
    await operations.boxes.up(alice.principal, "web")
    expiring = await operations.shares.create_share(
        alice.principal, "web", ttl=timedelta(seconds=1)
    )
    furnished.shares["expired"] = expiring[1].reveal()
    house.clock.turn(timedelta(seconds=2))
    await key(alice, "revoked", None, None)
    await operations.keys.remove_key(alice.principal, "revoked")
    _, code = await operations.ssh_keys.add_key(alice.principal, "phone")
    phone = Principal("SHA256:phone", None, "ssh_key")
    await operations.ssh_keys.confirm_key(phone, code.reveal())
    for person in (alice, bob):
        await key(person, "account", None, None)
        await key(person, "scoped", "ws1", timedelta(days=30))
        for workspace in WORKSPACES[1:] if person is alice else WORKSPACES:
            await operations.boxes.up(
                person.principal, "web" if workspace is None else f"{workspace}/web"
            )
        await _entrust(furnished, person)
    await key(admin, "account", None, None)
    revoked = await operations.shares.create_share(alice.principal, "web", ttl=None)
    await operations.shares.remove_share(alice.principal, revoked[0].share.id)
    furnished.shares["revoked"] = revoked[1].reveal()
    furnished.shares["right"] = (
        await operations.shares.create_share(alice.principal, "web", ttl=None)
    )[1].reveal()
    for workspace in WORKSPACES:
        volume = await house.files.volume(alice.owner, workspace)
        volume.meta.trash_seconds = 3600
        drive = Drive(volume.fs)
        await _put(drive, REMOVED, f"marked content of {workspace}".encode())
        await drive.delete(REMOVED, Condition())
        await _put(drive, FILE, f"marked content of {workspace}".encode())
        await copies.create_snapshot(volume.fs, b"", SNAPSHOT)
        painter = replace(alice.principal, scope=workspace)
        content = f"marked content of {workspace}"
        await operations.canvases.render_canvas(painter, "plan", content, mime="text/plain")


async def _put(drive: Drive, path: bytes, content: bytes) -> None:
    pieces = [content]

    async def source() -> bytes | None:
        return pieces.pop() if pieces else None

    await drive.put(path, source, Condition())


async def _entrust(furnished: Furnished, person: Person) -> None:
    operations = furnished.house.operations
    await operations.profiles.set_profile(person.principal, "py", "debian")
    await operations.secrets.set_secret(person.principal, "KEPT", Secret("kept"), tier="account")
    await operations.secrets.set_secret(
        person.principal, "KEPT", Secret("kept, too"), tier="workspace", ws="ws1"
    )
    token = Secret("agent token")
    await operations.agents.set_agent(
        person.principal, command="run", env="TOKEN", output="text", token=token
    )
    await operations.snapshots.create_snapshot(person.principal, "web", "one")
    box_id = await furnished.box_id("web", person.name)
    asked = {"question": "Go on?", "options": ["yes", "no"]}
    await operations.asks.request_of_box(box_id, "ask", asked)


@asynccontextmanager
async def empty_house(
    agent: Tunnel, keys: dict[str, asyncssh.SSHKey], app: int
) -> AsyncIterator[Furnished]:
    """Yield a new house whose owners have no objects; the end of the context removes all of it."""
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="house-")))
        (root / "keys").mkdir(mode=0o700)
        house = House(root, agent)
        await house.start()
        stack.push_async_callback(house.files.close)
        stack.push_async_callback(house.close)
        config = Config(
            state_dir=root,
            api_addr=Address("127.0.0.1", 0),
            api_origins=("https://app.test",),
            api_hosts=("api.test",),
            preview_domain=PREVIEW_DOMAIN,
        )
        mcp = McpService(house.operations)
        stack.push_async_callback(mcp.close)
        api = Api(house.operations, config, mcp)
        server = ApiServer(api, config)
        http = await server.start()
        stack.push_async_callback(server.close)
        people = {name: Person(name, key) for name, key in keys.items()}
        house.administrators.add(people["admin"].owner)
        door = SshListener(
            house.operations,
            ListenerSettings(
                Address("127.0.0.1", 0),
                root / "keys",
                console=build_console(mcp.serve_lines),
                administrators=house.administrators,
            ),
            house.clock,
        )
        await door.start()
        stack.push_async_callback(door.close, drain_s=0)
        furnished = Furnished(house, api, http, door, people, app)
        try:
            yield furnished
        finally:
            for connection in furnished.connections.values():
                connection.abort()


@asynccontextmanager
async def furnished_house(
    agent: Tunnel, keys: dict[str, asyncssh.SSHKey], app: int
) -> AsyncIterator[Furnished]:
    """Yield a new house with all initial objects; the end of the context removes all of it."""
    async with empty_house(agent, keys, app) as furnished:
        await _furnish(furnished)
        for person in furnished.people.values():
            furnished.house.operations.callers.seen(person.principal, has_something=True)
        await furnished.house.operations.close()  # Waits for notes in background tasks.
        yield furnished


async def _say_ok(visit: Visit) -> None:
    """Answer ok to each request, and accept each WebSocket."""
    keys = visit.values(b"sec-websocket-key")
    if not keys:
        await visit.read_body()
        await visit.answer(SAYS_OK)
        return
    accepted = base64.b64encode(hashlib.sha1(keys[0] + WEBSOCKET, usedforsecurity=False).digest())
    await visit.answer(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n"
    )
    await visit.reader.read(1)


class Estate:
    """A sequence of houses: a new one follows when a test has changed the last one."""

    def __init__(self, agent: Tunnel, app: int) -> None:
        self._agent = agent
        self._app = app
        self._keys = ssh_keys()
        self._stack = AsyncExitStack()
        self._present: Furnished | None = None

    async def house(self) -> Furnished:
        """Return a house in its initial state."""
        if self._present is None:
            self._present = await self._stack.enter_async_context(
                furnished_house(self._agent, self._keys, self._app)
            )
        return self._present

    async def used_up(self) -> None:
        """Close the current house, because a test has changed it."""
        await self._stack.aclose()
        self._present = None


@asynccontextmanager
async def estate(user: str | None = None) -> AsyncIterator[Estate]:
    """Yield houses that share one agent and one server behind a port.

    `user` is an account of this machine whose login shell runs the commands; None means root.
    """
    async with local_agent() as box, listening(_say_ok) as app:
        if user is not None:
            config = box.run_dir / protocol.AGENT_CONFIG
            config.write_text(json.dumps({**json.loads(config.read_text()), "user": user}))
        await box.start()
        made = Estate(await box.tunnel(), app.port)
        try:
            yield made
        finally:
            await made.used_up()
