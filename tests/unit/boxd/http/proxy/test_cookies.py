"""The cookie `svc_proxy` as text: what is set, what is found, what is taken out."""

from __future__ import annotations

import pytest

from boxd.http.proxy.cookies import crumbs, set_lines, without_crumb
from boxd.secret import Secret

VALUE = Secret("v" * 43)
ONE, OTHER = b"/v1/boxes/0af/proxy/80/", b"/v1/boxes/web/proxy/80/"


def test_over_tls() -> None:
    expected = (
        b"svc_proxy=" + b"v" * 43 + b"; Path=/v1/boxes/0af/proxy/80/; HttpOnly; Secure;"
        b" SameSite=None; Max-Age=3600"
    )
    assert set_lines(VALUE, (ONE,), tls=True, partitioned=False) == [(b"set-cookie", expected)]
    partitioned = [(b"set-cookie", expected + b"; Partitioned")]
    assert set_lines(VALUE, (ONE,), tls=True, partitioned=True) == partitioned


def test_without_tls() -> None:
    expected = b"svc_proxy=" + b"v" * 43 + b"; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"
    for partitioned in (False, True):
        lines = set_lines(VALUE, (b"/",), tls=False, partitioned=partitioned)
        assert lines == [(b"set-cookie", expected)]


def test_one_line_for_each_name_of_the_box() -> None:
    assert len(set_lines(VALUE, (ONE, OTHER), tls=True, partitioned=False)) == 2
    assert len(set_lines(VALUE, (ONE, ONE), tls=True, partitioned=False)) == 1


def test_crumbs_of_all_lines_are_found() -> None:
    lines = [
        (b"cookie", b"a=1; svc_proxy=one;svc_proxy = two ; svc_proxy"),
        (b"set-cookie", b"svc_proxy=no"),
        (b"cookie", b"xsvc_proxy=no; SVC_PROXY=no; svc_proxy=th=ree"),
    ]
    assert crumbs(lines) == ["one", "two", "th=ree"]


@pytest.mark.parametrize(
    ("value", "rest"),
    [
        (b"a=1; b=2", b"a=1; b=2"),
        (b"a=1;b=svc_proxy; c", b"a=1;b=svc_proxy; c"),
        (b"svc_proxy=x", None),
        (b"svc_proxy=x; ", None),
        (b"svc_proxy=x; a=1", b"a=1"),
        (b"svc_proxy=x;a=1", b"a=1"),
        (b"a=1; svc_proxy=x", b"a=1"),
        (b"a=1; svc_proxy=x;  b=2;", b"a=1;  b=2;"),
        (b"a=1; svc_proxy = x; svc_proxy; b", b"a=1; b"),
    ],
)
def test_the_crumb_leaves_and_the_rest_stays(value: bytes, rest: bytes | None) -> None:
    assert without_crumb(value) == rest
