"""A box spec means the same at every door: by ssh, `up` and HTTP exec, on real agents.

What is compared is the stored row, with what the spec says and with each other.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest

from boxd.boxes.limits.tier_limits import load_tiers
from boxd.config import Address, Config
from boxd.http.app import Api
from boxd.http.server.serve import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from boxd.model.box import Box
    from tests.harness.ssh.frontdoor import Entrance

    Door = Callable[[Entrance, httpx.AsyncClient, str], Awaitable[None]]

TIER = load_tiers()["default"]
MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE
PROFILE = "profiles set py --image debian --flavor large --lifetime 5m --deadline 2h --egress none"


@dataclass(frozen=True)
class Made:
    """What a spec asks for, as the row shows it. `ttl` None: nothing is said of it."""

    ref: str = "web"
    flavor: str = "small"
    ttl: timedelta | None = None
    grace: timedelta | None = None
    egress: str = "all"
    clamped: bool = False
    durable: bool = False


SPECS = {
    "web": Made(),
    "WEB:debian": Made(),
    "web+": Made(),
    "web:debian:large": Made(flavor="large"),
    "web^90m": Made(ttl=90 * MINUTE),
    "web+10m": Made(grace=10 * MINUTE),
    "web:py": Made(flavor="large", ttl=2 * HOUR, grace=5 * MINUTE, egress="none"),
    "web:py:small^30m+20m": Made(ttl=30 * MINUTE, grace=20 * MINUTE, egress="none"),
    "ws1/web:py+1h": Made("ws1/web", "large", 2 * HOUR, HOUR, "none"),
    "ws1/web+:debian:large^2h+5m": Made("ws1/web", "large", 2 * HOUR, 5 * MINUTE),
    "web!": Made(durable=True),
    "web!+:debian:large": Made(flavor="large", durable=True),
    "web!^2h+5m": Made(ttl=2 * HOUR, grace=5 * MINUTE, durable=True),
    "ws1/web!:py": Made("ws1/web", "large", 2 * HOUR, 5 * MINUTE, "none", durable=True),
    "web:lasting": Made(durable=True),
    "web^9000h": Made(ttl=TIER.deadline_max, clamped=True),
    "web^9999d": Made(ttl=TIER.deadline_max, clamped=True),
    "web^999999999d": Made(ttl=TIER.deadline_max, clamped=True),
}


BEFORE_FRESH = {"WEB:debian", "ws1/web:py+1h"}
"""Their boxes are left to be replaced by the next spec, `name+`."""


async def connect(entrance: Entrance, web: httpx.AsyncClient, spec: str) -> None:
    """`ssh SPEC@host true`."""
    del web
    done = await entrance.client.run(spec, "true")
    assert done.status == 0, done.errors


async def up(entrance: Entrance, web: httpx.AsyncClient, spec: str) -> None:
    """`ssh cli@host up SPEC`."""
    del web
    done = await entrance.client.run("cli", f"up '{spec}'")
    assert done.status == 0, done.errors


async def execute(entrance: Entrance, web: httpx.AsyncClient, spec: str) -> None:
    """`POST /v1/exec/SPEC`; a workspace stands in the query there."""
    del entrance
    head, slash, tail = spec.partition("/")
    name, workspace = (tail, head) if slash else (spec, None)
    answer = await web.post(
        f"/v1/exec/{quote(name, safe='')}",
        params={"ws": workspace} if workspace else None,
        content=b"true",
        headers={"content-type": "text/plain"},
    )
    assert answer.status_code == 200, answer.text


DOORS: dict[str, tuple[Door, timedelta | None]] = {
    "ssh": (connect, None),
    "up": (up, None),
    "exec": (execute, TIER.deadline_exec),
}
"""With the deadline that the door gives a box whose spec and profile have none."""


@asynccontextmanager
async def served(entrance: Entrance) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP API of the same service, for the same owner."""
    made = await entrance.client.run("cli", "apikeys create web")
    assert made.status == 0, made.errors
    config = Config(state_dir=entrance.client.directory.parent, api_addr=Address("127.0.0.1", 0))
    server = ApiServer(Api(entrance.operations), config)
    address = await server.start()
    headers = {"authorization": f"Bearer {made.text.strip()}"}
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{address}", headers=headers, timeout=60
        ) as web:
            yield web
    finally:
        await server.close()


def shown(box: Box) -> Made:
    """The row of a new box."""
    ttl = None if box.deadline is None else box.deadline - box.created
    assert (box.image, box.drive, box.ephemeral) == ("debian", False, False)
    assert (box.cpus, box.mem_mb) == ((2.0, 2048) if box.flavor == "large" else (1.0, 512))
    return Made(box.ref, box.flavor, ttl, box.grace, box.egress, box.clamped, box.durable)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("door", DOORS)
async def test_a_spec_means_the_same_at_every_door(front_door: Entrance, door: str) -> None:
    enter, default = DOORS[door]
    client = front_door.client
    assert (await client.run("cli", PROFILE)).status == 0
    lasting = "profiles set lasting --image debian --durable"
    assert (await client.run("cli", lasting)).status == 0
    found: dict[str, Made] = {}
    ids: set[str] = set()
    async with served(front_door) as web:
        for spec in SPECS:
            await enter(front_door, web, spec)
            [box] = await front_door.store.all_boxes()
            assert box.id not in ids, spec
            ids.add(box.id)
            found[spec] = shown(box)
            if spec not in BEFORE_FRESH:
                assert (await client.run("cli", f"rm {box.ref}")).status == 0
    wanted = {
        spec: made if made.ttl or made.durable else replace(made, ttl=default)
        for spec, made in SPECS.items()
    }
    assert found == wanted


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("web:debian:large", ["'small'", "'large'"]),
        ("web:py:large", ["'small'", "'large'"]),
        ("web:trixie", ["'debian'", "'trixie'"]),
        ("web:py", ["'debian' without a profile", "profile py with image 'debian'"]),
        ("lab:py", ["profile is lab with image 'debian'", "profile py with image 'debian'"]),
        ("lab:debian", ["profile is lab with image 'debian'", "the spec names 'debian'"]),
    ],
)
async def test_every_door_refuses_an_existing_box_of_another_profile_image_or_flavor(
    front_door: Entrance, spec: str, named: list[str]
) -> None:
    async with served(front_door) as web:
        assert (await front_door.client.run("cli", PROFILE)).status == 0
        assert (await front_door.client.run("cli", "profiles set lab --image debian")).status == 0
        assert (await front_door.client.run("cli", "up web")).status == 0
        assert (await front_door.client.run("cli", "up lab:lab")).status == 0
        before = await front_door.store.all_boxes()
        session = await front_door.client.run(spec, "echo ran")
        assert (session.status, session.text) == (255, "")
        made = await front_door.client.run("cli", f"up {spec}")
        assert (made.status, made.text) == (1, "")
        answer = await web.post(
            f"/v1/exec/{quote(spec, safe='')}",
            content=b"echo ran",
            headers={"content-type": "text/plain"},
        )
        assert answer.status_code == 409
        for text in (session.errors, made.errors, answer.json()["error"]):
            assert all(name in text for name in [f"box {spec[:3]} exists", *named]), text
        assert await front_door.store.all_boxes() == before
        for same in ("web", "web:debian", "web:debian:small", "lab", "lab:lab"):
            assert (await front_door.client.run(same, "echo ran")).text == "ran\n"
