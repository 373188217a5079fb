"""Profiles on fakes: set, used, refused, removed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadName, BadRequest, Forbidden, NotFound, QuotaExceeded, UnknownImage
from boxd.model.profile import Profile, ProfileDefaults
from boxd.model.progress import Progress
from boxd.operations import profiles
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World

HOUR = timedelta(hours=1)


async def test_a_profile_is_kept_shown_and_forgotten(ops: Operations) -> None:
    made = await ops.profiles.set_profile(
        ALICE,
        "Py",
        "debian",
        ProfileDefaults(flavor="LARGE", ttl=HOUR, grace=2 * HOUR, egress="b.org, a.org"),
    )
    assert made == Profile("py", "debian", ProfileDefaults("large", HOUR, 2 * HOUR, "a.org,b.org"))
    assert await ops.profiles.list_profiles(ALICE) == [made]
    assert await ops.profiles.show_profile(ALICE, "PY") == made
    again = await ops.profiles.set_profile(ALICE, "py", "debian")
    assert await ops.profiles.list_profiles(ALICE) == [again] == [Profile("py", "debian")]
    assert await ops.profiles.remove_profile(ALICE, "py") == again
    assert await ops.profiles.list_profiles(ALICE) == []


async def test_profiles_are_the_owner_s_alone(ops: Operations) -> None:
    await ops.profiles.set_profile(ALICE, "py", "debian")
    assert await ops.profiles.list_profiles(BOB) == []
    for verb in (ops.profiles.show_profile, ops.profiles.remove_profile):
        with pytest.raises(NotFound, match="no profile 'py'; see: profiles ls"):
            await verb(BOB, "py")
    with pytest.raises(UnknownImage):
        await ops.boxes.up(BOB, "web:py")


async def test_a_scoped_key_uses_profiles_and_changes_none(ops: Operations) -> None:
    await ops.profiles.set_profile(ALICE, "py", "debian", ProfileDefaults(flavor="large"))
    assert [one.name for one in await ops.profiles.list_profiles(SCOPED)] == ["py"]
    with pytest.raises(Forbidden, match="change a profile"):
        await ops.profiles.set_profile(SCOPED, "py", "debian")
    with pytest.raises(Forbidden, match="change a profile"):
        await ops.profiles.remove_profile(SCOPED, "py")
    await ops.boxes.up(ALICE, "ws1/first")
    assert (await ops.boxes.up(SCOPED, "web:py")).flavor == "large"


async def test_a_profile_wins_over_an_image_and_the_spec_over_the_profile(
    world: World, ops: Operations
) -> None:
    notes: list[str] = []
    await ops.profiles.set_profile(
        ALICE,
        "unbuilt",
        "debian",
        ProfileDefaults(flavor="large", ttl=HOUR, grace=HOUR, egress="none"),
        Progress(notes.append),
    )
    assert notes == ["unbuilt in a box spec now means this profile, not the image of that name"]
    await ops.boxes.up(ALICE, "one:unbuilt")
    await ops.boxes.up(ALICE, "two:UNBUILT:small^2h+5m")
    one, two = sorted(await world.store.boxes(ALICE.owner), key=lambda box: box.name)
    assert (one.image, one.flavor, one.egress, one.grace) == ("debian", "large", "none", HOUR)
    assert one.deadline == world.clock.now() + HOUR
    assert (two.image, two.flavor, two.grace) == ("debian", "small", timedelta(minutes=5))
    assert two.deadline == world.clock.now() + 2 * HOUR


async def test_a_box_stays_what_it_was_made_of(ops: Operations) -> None:
    notes: list[str] = []
    await ops.profiles.set_profile(ALICE, "py", "debian", ProfileDefaults(flavor="large"))
    await ops.boxes.up(ALICE, "web:py")
    await ops.boxes.up(ALICE, "web:py", progress=Progress(notes.append))
    assert notes == []
    await ops.profiles.remove_profile(ALICE, "py")
    assert (await ops.boxes.up(ALICE, "web", progress=Progress(notes.append))).flavor == "large"


async def test_what_a_profile_names_may_have_gone(world: World, ops: Operations) -> None:
    await world.store.put_profile(ALICE.owner, Profile("old", "gone"))
    with pytest.raises(UnknownImage, match="profile old: no image 'gone'"):
        await ops.boxes.up(ALICE, "web:old")
    await world.store.put_profile(ALICE.owner, Profile("old", "debian", ProfileDefaults("gone")))
    with pytest.raises(UnknownImage, match="no flavor 'gone'"):
        await ops.boxes.up(ALICE, "web:old")
    assert await world.left_overs() == {}


async def test_an_image_that_is_not_built_yet_is_taken(ops: Operations) -> None:
    assert (await ops.profiles.set_profile(ALICE, "later", "unbuilt")).image == "unbuilt"


@pytest.mark.parametrize(
    ("name", "image", "more", "error", "said"),
    [
        ("cli", "debian", {}, BadName, "profile name 'cli' is reserved"),
        ("a/b", "debian", {}, BadName, "profile name 'a/b' is not valid"),
        ("small", "debian", {}, BadRequest, "'small' is a flavor"),
        ("py", "nope", {}, UnknownImage, "no image 'nope'"),
        ("py", "debian:small", {}, BadRequest, "'debian:small' is not valid: give one name"),
        ("py", "debian^2h", {}, BadRequest, "give one name"),
        ("py", "", {}, BadRequest, "image '' is missing|image ''"),
        ("py", "a b", {}, BadRequest, "'a b'"),
        ("py", "debian", {"flavor": "huge"}, UnknownImage, "no flavor 'huge'; known: large, small"),
        ("py", "debian", {"egress": "all,none"}, BadRequest, "must be the whole policy"),
        ("py", "debian", {"egress": "exa mple.org"}, BadRequest, "egress"),
    ],
)
async def test_what_is_refused(
    ops: Operations, name: str, image: str, more: dict[str, str], error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        await ops.profiles.set_profile(
            ALICE,
            name,
            image,
            ProfileDefaults(flavor=more.get("flavor"), egress=more.get("egress")),
        )
    assert await ops.profiles.list_profiles(ALICE) == []


async def test_their_number_is_bounded(ops: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_PROFILES", 2)
    for name in ("a", "b"):
        await ops.profiles.set_profile(ALICE, name, "debian")
    with pytest.raises(QuotaExceeded, match="2 profiles per owner; remove one: profiles rm NAME"):
        await ops.profiles.set_profile(ALICE, "c", "debian")
    await ops.profiles.set_profile(ALICE, "a", "debian", ProfileDefaults(flavor="large"))
