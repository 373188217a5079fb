"""What a box is made with: who says it first, what is clamped, what an existing box ignores."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.boxes.state.records import new_box
from boxd.boxes.state.requests import BoxRequest
from boxd.boxes.state.settings import (
    Defaults,
    Renewal,
    Shortened,
    box_settings,
    check_tier,
    profile_of,
    renewed,
)
from boxd.boxes.timing.policy import Policy
from boxd.errors import BadRequest, Conflict, Forbidden, UnknownImage
from boxd.model.box import Box, BoxState
from boxd.model.catalog import Flavor
from boxd.model.profile import Profile, ProfileDefaults
from boxd.names.duration import MAX_DURATION
from boxd.names.spec import BoxSpec
from tests.harness.simulation.world import FakeCatalog
from tests.unit.boxd.boxes.life import spec

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CATALOG = FakeCatalog(Path("/nowhere"))
DEFAULTS = Defaults("debian", "fake", drive=True, deadline_max=DAY)
STRICT = replace(DEFAULTS, policy=Policy(grace=timedelta(minutes=5), grace_max=HOUR))
PROFILE = Profile(
    "py", "python", ProfileDefaults("large", ttl=2 * HOUR, grace=3 * HOUR, egress="none")
)


def box_of(text: str, defaults: Defaults = DEFAULTS, catalog: FakeCatalog = CATALOG) -> Box:
    """The record of a new box."""
    wanted = spec(text)
    settings = box_settings(wanted, defaults, catalog)
    return new_box(BoxRequest("SHA256:alice", wanted.workspace, wanted), settings, now=NOW)


def test_what_nobody_says_the_service_gives() -> None:
    settings = box_settings(spec("web"), DEFAULTS, CATALOG)
    assert (settings.image, settings.flavor.name, settings.ttl, settings.grace) == (
        "debian",
        "small",
        None,
        None,
    )
    assert (settings.egress, settings.drive, settings.backend, settings.shortened) == (
        "all",
        True,
        "fake",
        (),
    )
    assert box_settings(spec("web"), STRICT, CATALOG).grace == timedelta(minutes=5)


def test_the_spec_wins_over_the_service() -> None:
    settings = box_settings(spec("web:other:large^2h+10m"), STRICT, CATALOG)
    assert (settings.image, settings.flavor.name) == ("other", "large")
    assert (settings.ttl, settings.grace) == (2 * HOUR, timedelta(minutes=10))


def test_a_profile_supplies_what_the_spec_leaves_out() -> None:
    settings = box_settings(spec("web:py"), DEFAULTS, CATALOG, profile=PROFILE)
    assert (settings.image, settings.flavor.name, settings.egress) == ("python", "large", "none")
    assert (settings.ttl, settings.grace) == (2 * HOUR, 3 * HOUR)
    sparse = box_settings(spec("web:py"), STRICT, CATALOG, profile=Profile("py", "python"))
    assert (sparse.image, sparse.flavor.name, sparse.egress) == ("python", "small", "all")
    assert (sparse.ttl, sparse.grace) == (None, timedelta(minutes=5))


def test_the_spec_wins_over_the_profile() -> None:
    settings = box_settings(spec("web:py:small^30m+1m"), DEFAULTS, CATALOG, profile=PROFILE)
    assert (settings.image, settings.flavor.name) == ("python", "small")
    assert (settings.ttl, settings.grace) == (HOUR / 2, timedelta(minutes=1))


def test_the_verb_s_deadline_is_the_last_to_be_asked_and_clamped_silently() -> None:
    assert box_settings(spec("web"), DEFAULTS, CATALOG, default_ttl=HOUR).ttl == HOUR
    assert box_settings(spec("web^2h"), DEFAULTS, CATALOG, default_ttl=HOUR).ttl == 2 * HOUR
    profiled = box_settings(spec("web:py"), DEFAULTS, CATALOG, profile=PROFILE, default_ttl=HOUR)
    assert profiled.ttl == 2 * HOUR
    clamped = box_settings(spec("web"), DEFAULTS, CATALOG, default_ttl=2 * DAY)
    assert (clamped.ttl, clamped.shortened) == (DAY, ())


def test_what_is_clamped_is_told() -> None:
    settings = box_settings(spec("web^2d+2h"), STRICT, CATALOG)
    assert (settings.ttl, settings.grace) == (DAY, HOUR)
    assert [one.note("ws/web") for one in settings.shortened] == [
        "deadline ^2d shortened: the maximum for box ws/web is ^1d",
        "grace +2h shortened: the maximum for box ws/web is +1h",
    ]


def test_what_is_clamped_of_a_profile_names_it() -> None:
    settings = box_settings(spec("web:py^2d"), STRICT, CATALOG, profile=PROFILE)
    assert [one.note("web") for one in settings.shortened] == [
        "deadline ^2d shortened: the maximum for box web is ^1d",
        "grace +3h of profile py shortened: the maximum for box web is +1h",
    ]


@pytest.mark.parametrize("source", ["spec", "profile"])
def test_an_unknown_flavor_names_the_known_ones(source: str) -> None:
    wanted = replace(spec("web:debian"), flavor="huge" if source == "spec" else None)
    profile = Profile("py", "debian", ProfileDefaults("huge")) if source == "profile" else None
    named = "^profile py: " if source == "profile" else "^"
    with pytest.raises(UnknownImage, match=f"{named}no flavor 'huge'; known: small, large"):
        box_settings(wanted, DEFAULTS, CATALOG, profile=profile)


def test_the_disk_is_the_flavor_s_or_the_tier_s() -> None:
    tier = replace(DEFAULTS, disk_mb=7)
    assert box_settings(spec("web"), DEFAULTS, CATALOG).disk_mb == 0
    assert box_settings(spec("web"), tier, CATALOG).disk_mb == 7
    catalog = FakeCatalog(Path("/nowhere"))
    catalog.default_flavor = Flavor("small", "small", 1.0, 512, disk_mb=9, pids=33)
    box = box_of("web", tier, catalog)
    assert (box.disk_mb, box.pids) == (9, 33)


def test_a_profile_in_the_place_of_an_image() -> None:
    other = Profile("other", "debian")
    assert profile_of("PY", [other, PROFILE]) is PROFILE
    assert profile_of("python", [other, PROFILE]) is None


def test_the_record_is_the_settings() -> None:
    box = box_of("ws/web:other:large^2h+10m")
    assert (box.ref, box.image, box.state) == ("ws/web", "other", BoxState.CREATING)
    assert (box.flavor, box.cpus, box.mem_mb) == ("large", 4.0, 4096)
    assert (box.deadline, box.grace) == (NOW + 2 * HOUR, timedelta(minutes=10))
    assert (box.drive, box.backend, box.detail) == (True, "fake", "")
    assert box_of("web").deadline is None


# --- existing boxes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("web", None),
        ("web:debian:small", None),
        ("web^1h", "deadline ^1h"),
        ("web:debian:small^1h", "deadline ^1h"),
    ],
)
def test_what_an_existing_box_ignores(text: str, note: str | None) -> None:
    renewal = renewed(spec(text), box_of("web^1h"), DEFAULTS)
    told = () if note is None else (f"{note} ignored: box web exists; web+ recreates it",)
    assert renewal == Renewal(None, told)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("web:other", ["image is 'debian', the spec names 'other'"]),
        ("web:debian:large", ["flavor is 'small', the spec names 'large'"]),
        ("web:other:large^1h", ["'debian'", "'other'", "'small'", "'large'"]),
    ],
)
def test_a_spec_of_another_image_or_flavor_is_refused(text: str, names: list[str]) -> None:
    with pytest.raises(Conflict) as refused:
        renewed(spec(text), box_of("web"), DEFAULTS)
    for name in ["box web exists", "web+", *names]:
        assert name in str(refused.value)


def test_an_existing_box_takes_another_grace_within_bounds() -> None:
    box = box_of("web+10m")
    assert renewed(spec("web"), box, DEFAULTS).grace is None
    assert renewed(spec("web+10m"), box, DEFAULTS).grace is None
    assert renewed(spec("web+20m"), box, DEFAULTS) == Renewal(timedelta(minutes=20), ())
    assert renewed(spec("web+2h"), box, STRICT) == Renewal(
        HOUR, ("grace +2h shortened: the maximum for box web is +1h",)
    )


def test_a_profile_renews_nothing() -> None:
    box = replace(box_of("web"), image="python", profile="py")
    assert renewed(spec("web:py"), box, DEFAULTS, profile=PROFILE) == Renewal(None, ())
    with pytest.raises(Conflict, match="'debian', the spec names profile py with image 'python'"):
        renewed(spec("web:py"), box_of("web"), DEFAULTS, profile=PROFILE)


def _made_from(profile: str | None) -> Box:
    return replace(box_of("web"), profile=profile)


@pytest.mark.parametrize(
    ("made_from", "text", "named", "texts"),
    [
        ("lab", "web:bench", True, ["its profile is lab with image 'debian'", "profile bench"]),
        ("lab", "web:debian", False, ["its profile is lab with image 'debian'", "'debian'"]),
        ("", "web:bench", True, ["its image is 'debian' without a profile", "profile bench"]),
    ],
)
def test_a_spec_of_another_profile_of_the_same_image_is_refused(
    made_from: str, text: str, named: bool, texts: list[str]
) -> None:
    profile = Profile("bench", "debian") if named else None
    with pytest.raises(Conflict) as refused:
        renewed(spec(text), _made_from(made_from), DEFAULTS, profile=profile)
    for part in ["box web exists", "web+", *texts]:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("made_from", "text", "profile"),
    [
        ("lab", "web:lab", Profile("lab", "debian")),
        ("lab", "web:LAB", None),  # the profile was removed since
        (None, "web:lab", Profile("lab", "debian")),  # an older row
        (None, "web:debian", None),
        ("", "web:debian", None),
        ("lab", "web", None),
    ],
)
def test_a_spec_of_what_the_box_was_made_from_is_accepted(
    made_from: str | None, text: str, profile: Profile | None
) -> None:
    assert renewed(spec(text), _made_from(made_from), DEFAULTS, profile=profile) == Renewal(
        None, ()
    )


LASTING = Profile("lasting", "debian", ProfileDefaults(durable=True))


@pytest.mark.parametrize(
    ("text", "verb", "profile", "durable"),
    [
        ("web", None, None, False),
        ("web!", None, None, True),
        ("web", True, None, True),
        ("web", False, None, False),
        ("web:lasting", None, LASTING, True),
        ("web!:py", None, PROFILE, True),
        ("web:lasting", False, LASTING, False),
    ],
)
def test_durability_comes_from_the_spec_the_verb_or_the_profile(
    text: str, verb: bool | None, profile: Profile | None, durable: bool
) -> None:
    wanted = spec(text)
    settings = box_settings(wanted, DEFAULTS, CATALOG, profile=profile, durable=verb)
    assert settings.durable is durable
    box = new_box(BoxRequest("SHA256:alice", None, wanted, durable=verb), settings, now=NOW)
    assert box.durable is durable


def test_a_durable_box_gets_no_deadline_from_the_verb() -> None:
    for text, profile, ttl in (
        ("web!", None, None),
        ("web:lasting", LASTING, None),
        ("web!^2h", None, 2 * HOUR),
        ("web!:py", PROFILE, 2 * HOUR),
        ("web", None, HOUR),
    ):
        settings = box_settings(spec(text), DEFAULTS, CATALOG, profile=profile, default_ttl=HOUR)
        assert settings.ttl == ttl


def test_a_box_for_one_task_cannot_be_durable() -> None:
    for text, verb in (("job!", None), ("job", True)):
        with pytest.raises(
            BadRequest, match="box job cannot be durable, because it is created for one task"
        ):
            box_settings(spec(text), DEFAULTS, CATALOG, durable=verb, ephemeral=True)
    settings = box_settings(spec("_:lasting"), DEFAULTS, CATALOG, profile=LASTING, ephemeral=True)
    assert not settings.durable
    throwaway = replace(box_of("web"), ephemeral=True)
    for text, verb in (("web!", None), ("web", True)):
        with pytest.raises(BadRequest, match="copy it: snapshot fork web NAME"):
            renewed(spec(text), throwaway, DEFAULTS, durable=verb)
    assert renewed(spec("web"), throwaway, DEFAULTS, durable=False) == Renewal(None, ())


def test_a_mark_makes_an_existing_box_durable_and_nothing_takes_it_back_silently() -> None:
    box, lasting = box_of("web"), box_of("web!")
    note = "box web is durable now: it is removed only by rm, or at its deadline"
    assert renewed(spec("web!"), box, DEFAULTS) == Renewal(None, (note,), durable=True)
    assert renewed(spec("web"), box, DEFAULTS, durable=True) == Renewal(None, (), durable=True)
    assert renewed(spec("web!"), lasting, DEFAULTS) == Renewal(None, ())
    assert renewed(spec("web"), lasting, DEFAULTS) == Renewal(None, ())
    assert renewed(spec("web"), lasting, DEFAULTS, durable=False) == Renewal(
        None, (), durable=False
    )
    made_from = replace(box, profile="lasting")
    assert renewed(spec("web:lasting"), made_from, DEFAULTS, profile=LASTING) == Renewal(None, ())


# --- what holds for all ----------------------------------------------------------------------

SPANS = st.integers(1, int(MAX_DURATION.total_seconds())).map(lambda s: timedelta(seconds=s))
MAYBE = st.none() | SPANS
FLAVORS = st.sampled_from([None, "small", "large"])
SPECS = st.builds(
    BoxSpec,
    name=st.just("web"),
    image=st.sampled_from([None, "debian", "py"]),
    flavor=FLAVORS,
    ttl=MAYBE,
    grace=MAYBE,
)
PROFILES = st.none() | st.builds(
    Profile,
    name=st.just("py"),
    image=st.just("python"),
    defaults=st.builds(
        ProfileDefaults,
        flavor=FLAVORS,
        ttl=MAYBE,
        grace=MAYBE,
        egress=st.sampled_from([None, "none"]),
    ),
)


@st.composite
def defaults_of(draw: st.DrawFn) -> Defaults:
    """Any service and tier."""
    most = draw(SPANS)
    grace = draw(MAYBE)
    policy = Policy(grace=None if grace is None else min(grace, most), grace_max=most)
    return replace(DEFAULTS, deadline_max=draw(SPANS), policy=policy)


@given(SPECS, defaults_of(), PROFILES, MAYBE)
def test_the_first_who_says_it_decides_within_bounds(
    wanted: BoxSpec, defaults: Defaults, profile: Profile | None, default_ttl: timedelta | None
) -> None:
    settings = box_settings(wanted, defaults, CATALOG, profile=profile, default_ttl=default_ttl)
    preset = ProfileDefaults() if profile is None else profile.defaults
    told = {one.what: one for one in settings.shortened}
    asked = {
        "deadline": (wanted.ttl, preset.ttl, default_ttl),
        "grace": (wanted.grace, preset.grace, defaults.policy.grace),
    }
    most = {"deadline": defaults.deadline_max, "grace": defaults.policy.grace_max}
    given_to = {"deadline": settings.ttl, "grace": settings.grace}
    for what, sources in asked.items():
        first = next((one for one in sources if one is not None), None)
        assert given_to[what] == (None if first is None else min(first, most[what]))
        stated = next((one for one in sources[:2] if one is not None), None)
        assert (what in told) is (stated is not None and stated > most[what])
        if what in told:
            note = told[what]
            assert isinstance(note, Shortened)
            assert (note.asked, note.maximum) == (stated, most[what])
            assert bool(note.profile) is (sources[0] is None)


def test_a_box_with_a_relay_key_is_confidential() -> None:
    settings = box_settings(spec("web"), DEFAULTS, CATALOG)
    for key in ("", "ssh-ed25519 AAAA"):
        box = new_box(
            BoxRequest("SHA256:alice", None, spec("web")), settings, now=NOW, relay_key=key
        )
        assert (box.relay_key, box.confidential) == (key, bool(key))


@given(SPECS, defaults_of(), SPECS)
def test_a_box_is_renewed_once_and_then_has_what_it_was_given(
    first: BoxSpec, defaults: Defaults, again: BoxSpec
) -> None:
    settings = box_settings(first, defaults, CATALOG)
    box = new_box(BoxRequest("SHA256:alice", None, spec("web")), settings, now=NOW)
    again = replace(again, image=None, flavor=None)
    renewal = renewed(again, box, defaults)
    kept = box if renewal.grace is None else replace(box, grace=renewal.grace)
    assert kept.grace is None or kept.grace <= defaults.policy.grace_max
    assert renewed(again, kept, defaults).grace is None
    assert renewed(first, box, defaults).grace is None


class KindCatalog(FakeCatalog):
    """With a flavor for one tier only, and one with another runtime."""

    def flavors(self) -> list[Flavor]:
        """Those of other tests, and these."""
        few = Flavor("few", "", 1.0, 512, containers=True, tiers=("large",))
        return [*super().flavors(), few, Flavor("strong", "", 1.0, 512, runtime="runsc")]


def test_a_flavor_is_for_the_tiers_that_the_operator_names() -> None:
    catalog = KindCatalog(Path("/nowhere"))
    few = BoxSpec("web", image="debian", flavor="few")
    with pytest.raises(Forbidden, match=r"flavor few is not for your tier \(default\), only for l"):
        box_settings(few, DEFAULTS, catalog)
    profile = Profile("p", "debian", ProfileDefaults("few"))
    with pytest.raises(Forbidden, match="flavor few"):
        box_settings(spec("web:p"), DEFAULTS, catalog, profile=profile)
    large = replace(DEFAULTS, tier="large")
    assert box_settings(few, large, catalog).flavor.containers
    check_tier(catalog, "removed", "default")


def test_a_box_with_another_runtime_has_no_drive_from_the_start() -> None:
    catalog = KindCatalog(Path("/nowhere"))
    wanted = BoxSpec("web", image="debian", flavor="strong")
    settings = box_settings(wanted, DEFAULTS, catalog)
    box = new_box(BoxRequest("SHA256:alice", None, wanted), settings, now=NOW)
    assert (box.runtime, box.containers, box.drive) == ("runsc", False, False)
    assert box_of("web", catalog=catalog).drive
