"""The box index finds what looking at every box would find, and is fed by every change of a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.state.box_index import BoxIndex
from boxd.boxes.state.requests import BoxRequest
from boxd.model.box import Box, BoxState
from boxd.names.reference import parse_reference
from tests.unit.boxd.boxes.life import OWNER, relayed, rows, spec, up

if TYPE_CHECKING:
    from tests.harness.simulation.world import World

NOW = datetime(2026, 1, 2, tzinfo=UTC)
IDS = [f"{number:02x}" * 16 for number in (0x00, 0x0A, 0xA0, 0xA1, 0xFF)]
NAMES = ["web", "a0", "a", "my-app"]
WORDS = ("image", "flavor", "detail", "backend", "host_key")
BOXES = st.builds(
    Box,
    id=st.sampled_from(IDS),
    owner=st.sampled_from(["alice", "bob"]),
    workspace=st.sampled_from([None, "ws1"]),
    name=st.sampled_from(NAMES),
    state=st.sampled_from(BoxState),
    **{word: st.just("x") for word in WORDS},
    **{number: st.just(1) for number in ("cpus", "mem_mb")},
    **{moment: st.just(NOW) for moment in ("created", "since")},
    **{nothing: st.none() for nothing in ("deadline", "grace")},
    **{flag: st.just(value=False) for flag in ("ephemeral", "drive", "confidential")},
)
TEXTS = [*NAMES, "0", "00", "a1", "a1a1", "ff", "f0", "b", "none", IDS[3], IDS[3][:-1] + "0"]


@given(st.lists(st.tuples(st.booleans(), BOXES)))
def test_it_finds_what_a_look_at_every_box_finds(changes: list[tuple[bool, Box]]) -> None:
    index, present = BoxIndex(), dict[str, Box]()
    for here, drawn in changes:
        box = present.get(drawn.id, drawn)  # it keeps its name
        if here:
            index.put(box)
            present[box.id] = box
        else:
            index.forget(box)
            present.pop(box.id, None)
    for text in TEXTS:
        reference = parse_reference(text)
        found = any(
            box.name == reference.name
            or (reference.id_prefix is not None and box.id.startswith(reference.id_prefix))
            for box in present.values()
        )
        assert index.has(reference) == found


async def test_it_follows_the_life_of_a_box(world: World) -> None:
    index = world.lifecycle.box_index
    box = await up(world, "ws1/web")
    wanted = [parse_reference(text) for text in ("web", box.id, box.id[:5])]
    assert all(map(index.has, wanted))
    anew = spec("ws1/web+")
    other = await world.lifecycle.up(BoxRequest(OWNER, "ws1", anew))
    assert [index.has(one) for one in wanted] == [True, False, False]
    await world.lifecycle.remove(other)
    assert not any(map(index.has, wanted))


async def test_it_forgets_a_box_whose_deadline_has_passed(world: World) -> None:
    await up(world, "web^1h")
    await world.tick(timedelta(hours=1))
    assert await rows(world) == []
    assert not world.lifecycle.box_index.has(parse_reference("web"))


async def test_it_knows_what_an_earlier_service_left(world: World) -> None:
    box = await up(world, "web")
    await world.restart()
    assert world.lifecycle.box_index.has(parse_reference(box.id))


async def test_a_confidential_box_is_not_counted(world: World) -> None:
    box = await relayed(world, "vault")
    assert not world.lifecycle.box_index.has(parse_reference("vault"))
    await world.lifecycle.remove(box)
    assert not world.lifecycle.box_index.has(parse_reference(box.id))
