"""Box specs: the whole grammar, forwards and backwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boxd.errors import BadName
from boxd.names.duration import format_duration
from boxd.names.spec import MAX_SPEC, BoxSpec, parse_spec
from tests.harness.strategies import DURATIONS, NAMES
from tests.unit.boxd.names.refusal import value_or_refusal

FLAVORS = frozenset({"small", "large", "gpu1"})

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,10}[A-Za-z0-9])?"
IMAGES = st.from_regex(rf"{_PART}(?:/{_PART}){{0,2}}(?:[:@]{_PART}){{0,2}}", fullmatch=True).filter(
    lambda image: ":" not in image or image.rpartition(":")[2].lower() not in FLAVORS
)

MINUTES = timedelta(minutes=1)


@st.composite
def specs(draw: st.DrawFn) -> BoxSpec:
    """Every spec that a text can stand for."""
    image = draw(st.none() | IMAGES)
    name = draw(st.just("_") | NAMES)
    return BoxSpec(
        name=name,
        workspace=draw(st.none() | NAMES),
        fresh=draw(st.booleans()),
        durable=name != "_" and draw(st.booleans()),
        image=image,
        flavor=draw(st.none() | st.sampled_from(sorted(FLAVORS))) if image else None,
        ttl=draw(st.none() | DURATIONS),
        grace=draw(st.none() | DURATIONS),
    )


def format_spec(spec: BoxSpec, marks: str = "+!") -> str:
    """Return a text that means `spec`. `marks` is the order of the marks."""
    parts = [spec.name if spec.workspace is None else f"{spec.workspace}/{spec.name}"]
    parts.extend(mark for mark in marks if {"+": spec.fresh, "!": spec.durable}[mark])
    parts.extend(f":{part}" for part in (spec.image, spec.flavor) if part is not None)
    if spec.ttl is not None:
        parts.append(f"^{format_duration(spec.ttl)}")
    if spec.grace is not None:
        parts.append(f"+{format_duration(spec.grace)}")
    return "".join(parts)


@given(specs(), st.sampled_from(["+!", "!+"]))
def test_what_is_written_is_read_back(spec: BoxSpec, marks: str) -> None:
    assert parse_spec(format_spec(spec, marks), FLAVORS, allow_anonymous=True) == spec


@given(specs())
def test_case_of_everything_but_the_image_is_folded(spec: BoxSpec) -> None:
    plain = replace(spec, image=None, flavor=None)
    assert parse_spec(format_spec(plain).upper(), FLAVORS, allow_anonymous=True) == plain


WEB = BoxSpec("web")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("web", WEB),
        ("ws1/web", replace(WEB, workspace="ws1")),
        ("web+", replace(WEB, fresh=True)),
        ("web+5m", replace(WEB, grace=5 * MINUTES)),
        ("web++5m", replace(WEB, fresh=True, grace=5 * MINUTES)),
        (
            "web+:img^1h+5m",
            BoxSpec("web", None, True, False, "img", None, 60 * MINUTES, 5 * MINUTES),
        ),
        ("web!", replace(WEB, durable=True)),
        ("ws1/Web!", replace(WEB, workspace="ws1", durable=True)),
        ("web!+", replace(WEB, fresh=True, durable=True)),
        ("web+!", replace(WEB, fresh=True, durable=True)),
        ("web!+5m", replace(WEB, durable=True, grace=5 * MINUTES)),
        ("web!++5m", replace(WEB, fresh=True, durable=True, grace=5 * MINUTES)),
        ("web+!+5m", replace(WEB, fresh=True, durable=True, grace=5 * MINUTES)),
        ("web!:python:small", replace(WEB, durable=True, image="python", flavor="small")),
        (
            "a/web!+:img^1h+5m",
            BoxSpec("web", "a", True, True, "img", None, 60 * MINUTES, 5 * MINUTES),
        ),
        ("web+^1h", replace(WEB, fresh=True, ttl=60 * MINUTES)),
        ("web:python", replace(WEB, image="python")),
        ("web:python:small", replace(WEB, image="python", flavor="small")),
        ("web:python:SMALL", replace(WEB, image="python", flavor="small")),
        ("web:python:tiny", replace(WEB, image="python:tiny")),
        ("web:small", replace(WEB, image="small")),
        (
            "web:docker.io/lib/x:1.2:small",
            replace(WEB, image="docker.io/lib/x:1.2", flavor="small"),
        ),
        ("web:docker.io/lib/x:1.2", replace(WEB, image="docker.io/lib/x:1.2")),
        ("web:lib/X@sha256:0af", replace(WEB, image="lib/X@sha256:0af")),
        ("a/b:c/d^1h", BoxSpec("b", "a", image="c/d", ttl=60 * MINUTES)),
        ("Web^1H", replace(WEB, ttl=60 * MINUTES)),
    ],
)
def test_forms(text: str, spec: BoxSpec) -> None:
    assert parse_spec(text, FLAVORS) == spec


def test_anonymous_boxes_only_where_they_are_allowed() -> None:
    spec = parse_spec("_:python^1h", allow_anonymous=True)
    assert spec.anonymous
    assert not WEB.anonymous
    with pytest.raises(BadName, match="reserved"):
        parse_spec("_")
    for text in ("_!", "_+!", "ws1/_!:python"):
        with pytest.raises(BadName, match="a throwaway box cannot be durable"):
            parse_spec(text, allow_anonymous=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("x" * (MAX_SPEC + 1), "513 characters"),
        (":img", "box name is missing"),
        ("/web", "workspace name is missing"),
        ("cli/web", "workspace name 'cli' is reserved"),
        ("a/b/c", "'b/c' is not valid"),
        ("a_b", "not valid"),
        ("cli", "reserved"),
        ("web:", "image after ':' is missing"),
        ("web::small", "'web:debian:small'"),
        ("web:a b", "image 'a b' is not valid"),
        ("web:a:", "not valid"),
        ("web:a//b", "not valid"),
        ("web:-a", "not valid"),
        ("web^", "deadline"),
        ("web^1x", "deadline '^ttl' '1x'"),
        ("web^0s", "must be positive"),
        ("web+x", "unexpected 'x'"),
        ("web++", "grace"),
        ("web+5", "grace '+duration' '5'"),
        ("web!!", "'!' occurs twice"),
        ("web!+!", "'!' occurs twice"),
        ("web!++", "grace"),
        ("web+!+", "grace"),
        ("web!x", "unexpected 'x' after the name"),
        ("web:python!", "'!' must follow the name directly"),
        ("web^2h!", "'!' must follow the name directly"),
        ("web+5m!", "'!' must follow the name directly"),
        ("web!^2h!", "'!' must follow the name directly"),
        ("!", "box name is missing"),
        ("!web", "box name is missing"),
        ("ws!/web", "workspace name 'ws!' is not valid"),
        ("web+5m^1h", "must precede"),
        ("web+5m:img", "grace"),
        ("web+\u0665m", "grace"),
        ("we\x1bb", r"\\x1b"),
    ],
)
def test_refusals_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(BadName) as refusal:
        parse_spec(text, FLAVORS)
    assert says.replace("\\\\", "\\") in str(refusal.value)
    assert str(refusal.value).isprintable()


@given(st.text(max_size=MAX_SPEC + 20) | st.text(alphabet="ab1/:^+!-_hm. @", max_size=40))
@example("web:" + "a" * 500 + "/")
@example("web:" + "a." * 250)
@example("+" * MAX_SPEC)
@example("1" * MAX_SPEC)
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    spec = value_or_refusal(lambda: parse_spec(text, FLAVORS, allow_anonymous=True))
    assert spec is None or parse_spec(format_spec(spec), FLAVORS, allow_anonymous=True) == spec
