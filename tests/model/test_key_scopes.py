"""API keys at random, with and without a scope, beside SSH keys: what each of them reaches.

Rules create, revoke and let expire keys of two owners, make and remove boxes, files and workspaces,
over SSH and over HTTP. What every credential sees and may do is compared with a model, which is
written from the specification and knows nothing of the service: a key is good until it is revoked
or its time is over; it has its owner's account, or one workspace of it, which is its default; what
lies outside that workspace is refused by its name, and not found by its id.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from boxd.boxes.timing import timers
from tests.harness.agents.agent import local_agent
from tests.harness.authorisation.house import empty_house, ssh_keys
from tests.harness.http.portserver import listening
from tests.harness.http.rawhttp import Request

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.harness.http.rawhttp import Answer

pytestmark = pytest.mark.promise("S1")

T = TypeVar("T")

OWNERS = st.sampled_from(["alice", "bob"])
WORKSPACES = st.sampled_from([None, "ws1", "ws2", "ws3"])
NAMED = st.sampled_from(["ws1", "ws2", "ws3"])
NAMES = st.sampled_from(["web", "api"])
"""None of them is hex, so that none is the beginning of an id."""
SCHEMES = st.sampled_from(["bearer", "x-api-key"])
TTL = timedelta(hours=1)


@dataclass
class Key:
    """An API key in the model. `ends` in hours of the model's clock; None: never."""

    owner: str
    name: str
    secret: str
    scope: str | None
    ends: float | None
    revoked: bool = False


@dataclass
class Account:
    """What an owner has in the model: boxes by workspace and name, files by workspace."""

    workspaces: set[str] = field(default_factory=set)
    boxes: dict[tuple[str | None, str], str] = field(default_factory=dict)
    files: dict[str | None, str] = field(default_factory=dict)


class KeyScopes(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.hours = 0.0
        self.keys: list[Key] = []
        self.accounts = {"alice": Account(), "bob": Account()}
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the machine's own loop."""
        return self.runner.run(work)

    async def _open(self) -> None:
        box = await self.stack.enter_async_context(local_agent())
        app = await self.stack.enter_async_context(listening())
        await box.start()
        opened = empty_house(await box.tunnel(), ssh_keys(), app.port)
        self.house = await self.stack.enter_async_context(opened)

    def teardown(self) -> None:
        """Ends the service."""
        self.run(self.stack.aclose())
        self.runner.close()

    # --- what the model says --------------------------------------------------------------------

    def good(self, key: Key) -> bool:
        """Whether a key is one."""
        return not key.revoked and (key.ends is None or self.hours < key.ends)

    def visible(self, key: Key) -> dict[str, tuple[str | None, str]]:
        """The boxes that there are for a good key, by id."""
        boxes = self.accounts[key.owner].boxes
        return {
            box_id: place
            for place, box_id in boxes.items()
            if key.scope is None or place[0] == key.scope
        }

    def status(self, key: Key, ws: str | None) -> int | None:
        """What a request that names a workspace is refused with; None: it is not."""
        if not self.good(key):
            return 401
        if ws is not None and key.scope is not None and ws != key.scope:
            return 403
        return None

    # --- what is sent ---------------------------------------------------------------------------

    def ask(
        self, key: Key, method: str, target: str, scheme: str = "bearer", body: bytes | None = None
    ) -> Answer:
        """One request with a key."""
        shown = {
            "bearer": ("Authorization", f"Bearer {key.secret}"),
            "x-api-key": ("X-Api-Key", key.secret),
        }[scheme]
        headers = (shown, ("Content-Type", "text/plain"))
        answer = self.run(self.house.ask(Request(method, target, headers, body)))
        if answer.status == 401:
            assert answer.error == "invalid API key"
        if answer.status == 403:
            assert f"confined to workspace {key.scope}" in answer.error
        return answer

    def type(self, owner: str, line: str) -> str:
        """One command of the management CLI, which must succeed; its output."""
        done = self.run(self.house.type(owner, "cli", line))
        assert done.status == 0, done.stderr
        return done.stdout

    # --- what happens ---------------------------------------------------------------------------

    @rule(owner=OWNERS, scope=WORKSPACES, short=st.booleans())
    def create_key(self, owner: str, scope: str | None, short: bool) -> None:
        """Over SSH, as keys are."""
        name = f"key{len(self.keys)}"
        if scope is not None and scope not in self.accounts[owner].workspaces:
            self.type(owner, f"ws create {scope}")
        words = [*(["-w", scope] if scope else []), *(["--ttl", "1h"] if short else [])]
        secret = self.type(owner, " ".join(["apikeys", "create", name, *words])).strip()
        ends = self.hours + TTL / timedelta(hours=1) if short else None
        self.keys.append(Key(owner, name, secret, scope, ends))
        if scope is not None:
            self.accounts[owner].workspaces.add(scope)

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def revoke_key(self, data: st.DataObject) -> None:
        """One that is there, expired or not."""
        there = [key for key in self.keys if not key.revoked]
        if there:
            key = data.draw(st.sampled_from(there))
            self.type(key.owner, f"apikeys rm {key.name}")
            key.revoked = True

    @rule(minutes=st.sampled_from([20, 59, 61]))
    def time_passes(self, minutes: int) -> None:
        """Keys with an end come nearer to it."""
        self.house.house.clock.turn(timedelta(minutes=minutes))
        self.hours += minutes / 60

    @rule(owner=OWNERS, ws=WORKSPACES, name=NAMES)
    def make_box(self, owner: str, ws: str | None, name: str) -> None:
        """Over SSH; a workspace is made with it."""
        shown = self.type(owner, f"up {_ref(ws, name)} --json")
        self.accounts[owner].boxes[ws, name] = json.loads(shown)["id"]
        if ws is not None:
            self.accounts[owner].workspaces.add(ws)

    @rule(owner=OWNERS, ws=NAMED)
    def remove_workspace(self, owner: str, ws: str) -> None:
        """With all that is in it, and the keys that are confined to it."""
        account = self.accounts[owner]
        if ws not in account.workspaces:
            return
        self.type(owner, f"ws rm {ws} --force")
        account.workspaces.discard(ws)
        account.files.pop(ws, None)
        account.boxes = {place: one for place, one in account.boxes.items() if place[0] != ws}
        for key in self.keys:
            if (key.owner, key.scope) == (owner, ws):
                key.revoked = True

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), ws=WORKSPACES, name=NAMES, asked=WORKSPACES, scheme=SCHEMES)
    def exec_with_key(
        self, data: st.DataObject, ws: str | None, name: str, asked: str | None, scheme: str
    ) -> None:
        """A command in a box, which is made where the key may."""
        key = data.draw(st.sampled_from(self.keys))
        target = f"/v1/exec/{_ref(ws, name)}?stream=false" + (f"&ws={asked}" if asked else "")
        status = self.status(key, ws) or self.status(key, asked)
        if status != 401 and ws and asked and ws != asked:
            status = 400
        answer = self.ask(key, "POST", target, scheme, b"echo done")
        assert answer.status == (status or 200)
        if status is None:
            account, place = self.accounts[key.owner], (ws or asked or key.scope, name)
            if place not in account.boxes:
                box = self.run(self.house.box_id(_ref(*place), key.owner))
                account.boxes[place] = box
            if place[0] is not None:
                account.workspaces.add(place[0])

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), asked=WORKSPACES, remove=st.booleans(), scheme=SCHEMES)
    def address_a_box(
        self, data: st.DataObject, asked: str | None, remove: bool, scheme: str
    ) -> None:
        """Any box of anybody, or none, by name or by id: resumed or removed."""
        key = data.draw(st.sampled_from(self.keys))
        ids = [box for one in self.accounts.values() for box in one.boxes.values()]
        named = st.tuples(WORKSPACES, NAMES)
        chosen = data.draw(st.one_of(named, st.sampled_from([*ids, secrets.token_hex(16)])))
        if isinstance(chosen, str):
            status, found = self.status(key, asked), self.visible(key).get(chosen)
            ref = chosen
        else:
            ws, ref = chosen[0], _ref(*chosen).replace("/", "%2F")
            status = self.status(key, ws) or self.status(key, asked)
            if status != 401 and ws and asked and ws != asked:
                status = 400
            place = (ws or asked or key.scope, chosen[1])
            found = place if place in self.accounts[key.owner].boxes else None
        if status is None and found is None:
            status = 404
        query = f"?ws={asked}" if asked else ""
        method, verb = ("DELETE", "") if remove else ("POST", "/resume")
        answer = self.ask(key, method, f"/v1/boxes/{ref}{verb}{query}", scheme)
        assert answer.status == (status or (204 if remove else 200)), answer.error
        if remove and status is None and found is not None:
            del self.accounts[key.owner].boxes[found]

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), asked=WORKSPACES, write=st.booleans(), scheme=SCHEMES)
    def use_the_drive(
        self, data: st.DataObject, asked: str | None, write: bool, scheme: str
    ) -> None:
        """A file that says whose drive it is in; a write makes the workspace, where the key may."""
        key = data.draw(st.sampled_from(self.keys))
        account, ws = self.accounts[key.owner], asked or key.scope
        query = f"?ws={asked}" if asked else ""
        body = f"{key.owner} {ws} {len(account.files)}".encode() if write else None
        answer = self.ask(key, "PUT" if write else "GET", f"/v1/wrk/file{query}", scheme, body)
        status = self.status(key, asked)
        if status is not None:
            assert answer.status == status
        elif body is not None:
            assert answer.status == (204 if ws in account.files else 201)
            account.files[ws] = body.decode()
            account.workspaces |= {ws} if ws else set()
        else:
            assert answer.status == (200 if ws in account.files else 404)
            assert answer.status == 404 or answer.body.decode() == account.files[ws]

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def every_key_lists_what_it_may(self) -> None:
        """Over HTTP, everywhere and in each workspace."""
        for key in self.keys:
            answer = self.ask(key, "GET", "/v1/boxes")
            if not self.good(key):
                assert answer.status == 401
                continue
            assert {box["id"]: _place(box) for box in json.loads(answer.body)} == self.visible(key)
        for key in self.keys[-2:]:
            for ws in ("ws1", "ws2"):
                answer = self.ask(key, "GET", f"/v1/boxes?ws={ws}", "x-api-key")
                status = self.status(key, ws)
                if status is None and ws not in self.accounts[key.owner].workspaces:
                    assert answer.status in (200, 404)
                    continue
                assert answer.status == (status or 200)
                if status is None:
                    found = {box["id"] for box in json.loads(answer.body)}
                    wanted = {one for one, place in self.visible(key).items() if place[0] == ws}
                    assert found == wanted

    @invariant()
    def everybody_lists_his_own(self) -> None:
        """Over SSH, where nobody is confined."""
        for owner, account in self.accounts.items():
            boxes = json.loads(self.type(owner, "ls --json"))
            assert {_place(box): box["id"] for box in boxes} == account.boxes
            named = {one["name"] for one in json.loads(self.type(owner, "ws ls --json"))}
            assert named - {None, "default", "-"} >= account.workspaces
            keys = {
                one["name"]: one["scope"]
                for one in json.loads(self.type(owner, "apikeys ls --json"))
            }
            mine = [key for key in self.keys if key.owner == owner and not key.revoked]
            assert keys == {key.name: key.scope for key in mine}


def _ref(ws: str | None, name: str) -> str:
    return name if ws is None else f"{ws}/{name}"


def _place(box: dict[str, Any]) -> tuple[str | None, str]:
    return box.get("workspace"), box["name"]


@pytest.mark.timeout(300)
def test_keys_reach_what_the_specification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "TICK", 1e6)  # no box goes while the clock is turned
    run_state_machine_as_test(
        KeyScopes, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )
