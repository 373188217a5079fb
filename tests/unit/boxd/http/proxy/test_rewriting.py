"""What goes through the proxy and what does not: rules one by one, and all of them at random."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.http.proxy.rewriting import (
    Client,
    Place,
    key_values,
    location,
    request_lines,
    response_lines,
    set_cookie,
    without_keys,
)

KEY = b"svc_" + b"0123456789" * 4
PREFIX = b"/v1/boxes/web/proxy/3000"
PATH = Place("web", 3000, b"/", PREFIX)
HOST = Place("web", 3000, b"/", host="web-3000.preview.test")
CLIENT = Client("203.0.113.7", "https", b"api.test")
ON_HOST = Client("203.0.113.7", "https", b"web-3000.preview.test")


def is_key(value: bytes) -> bool:
    """The one key that is good."""
    return value == KEY


@pytest.mark.parametrize(
    ("query", "left"),
    [
        (b"", b""),
        (b"a=1", b"a=1"),
        (b"key=" + KEY, b""),
        (b"a=1&key=" + KEY + b"&b=%41+c", b"a=1&b=%41+c"),
        (b"k%65y=" + KEY + b"&%6B%65%79=" + KEY, b""),
        (b"key=" + KEY + b"&key=" + KEY + b"&key=app", b"key=app"),
        (b"key=" + KEY.replace(b"_", b"%5F"), b""),
        (b"key&key=&KEY=" + KEY + b"&keys=" + KEY, b"key&key=&KEY=" + KEY + b"&keys=" + KEY),
        (b"&&a&=&%zz=%&key=%zz", b"&&a&=&%zz=%&key=%zz"),
        (b"key=" + KEY + b"x;key=" + KEY, b"key=" + KEY + b"x;key=" + KEY),
        (b"k%2565y=" + KEY, b"k%2565y=" + KEY),
    ],
)
def test_keys_leave_the_query_and_nothing_else_does(query: bytes, left: bytes) -> None:
    assert without_keys(query, is_key) == left


pieces = st.sampled_from(
    [b"key=" + KEY, b"k%65y=" + KEY, b"key=app", b"key", b"a=%41", b"", b"b=c+d", b"=", b"%"]
)


@given(st.lists(pieces))
def test_other_pairs_of_a_query_keep_place_and_spelling(pairs: list[bytes]) -> None:
    left = without_keys(b"&".join(pairs), is_key)
    assert left == b"&".join(pair for pair in pairs if KEY not in pair)
    assert KEY not in key_values(left)


names = st.sampled_from(
    [
        *(b"accept", b"x-a", b"x-b", b"host", b"cookie", b"referer", b"origin", b"content-type"),
        *(b"authorization", b"x-api-key", b"connection", b"keep-alive", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"proxy-authorization", b"proxy-connection"),
        *(b"content-length", b"x-forwarded-for", b"x-forwarded-prefix", b"x-forwarded-x"),
        b"forwarded",
        *(b"x_forwarded_for", b"x-forwarded_host", b"x_forwarded-x", b"x_forwardedfor", b"x_a"),
    ]
)
crumb = st.sampled_from([b"a=1", b" b=2", b"svc_proxy=x", b" svc_proxy=y", b" svc_proxy2=z", b" "])
values = st.one_of(
    st.sampled_from([b"X-A", b"close, x-b", b"host", b"", b"v", b"w;q=0.5, v", b"https://o/?a=1"]),
    st.lists(crumb, min_size=1).map(b";".join),
)
GONE = re.compile(
    rb"authorization|x-api-key|connection|keep-alive|te|trailer|transfer-encoding|upgrade|proxy-.*"
    rb"|content-length|forwarded|x[-_]forwarded[-_].*"
)


@given(st.lists(st.tuples(names, values)))
def test_lines_of_a_request_are_its_own_but_for_what_must_go(
    lines: list[tuple[bytes, bytes]],
) -> None:
    named = {
        token.strip().lower()
        for name, value in lines
        if name == b"connection"
        for token in value.split(b",")
    } - {b"host"}
    expected = []
    for name, value in lines:
        if GONE.fullmatch(name) or name in named:
            continue
        if name == b"cookie" and b"svc_proxy=" in value:
            crumbs = value.split(b";")
            kept = [one for one in crumbs if not one.strip().startswith(b"svc_proxy=")]
            rest = b";".join(kept)
            if crumbs[0].startswith(b"svc_proxy="):
                rest = rest.removeprefix(b" ")
            if not rest.strip(b" ;"):
                continue
            expected.append((name, rest))
        else:
            expected.append((name, value))
    if not any(name == b"host" for name, _ in expected):
        expected.insert(0, (b"host", b"api.test"))
    assert request_lines(lines, PATH, CLIENT, is_key) == [
        *expected,
        (b"x-forwarded-for", b"203.0.113.7"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"api.test"),
        (b"x-forwarded-prefix", PREFIX),
    ]


def test_a_preview_host_has_no_prefix() -> None:
    sent = dict(request_lines([(b"host", b"web-3000.preview.test")], HOST, ON_HOST, is_key))
    assert b"x-forwarded-prefix" not in sent
    assert sent[b"x-forwarded-host"] == b"web-3000.preview.test"


def test_the_key_of_the_page_before_is_not_told() -> None:
    page = b"https://api.test/v1/boxes/web/proxy/3000/?key=" + KEY
    lines = [(b"host", b"h"), (b"referer", page), (b"referer", page + b"&a=1")]
    sent = request_lines(lines, PATH, CLIENT, is_key)
    assert sent[1:3] == [
        (b"referer", b"https://api.test/v1/boxes/web/proxy/3000/"),
        (b"referer", b"https://api.test/v1/boxes/web/proxy/3000/?a=1"),
    ]


@pytest.mark.parametrize(
    ("value", "in_path", "on_host"),
    [
        (b"/login?a=%41#x", PREFIX + b"/login?a=%41#x", b"/login?a=%41#x"),
        (b"/", PREFIX + b"/", b"/"),
        (PREFIX, PREFIX, PREFIX),
        (PREFIX + b"/x", PREFIX + b"/x", PREFIX + b"/x"),
        (PREFIX + b"0/x", PREFIX + PREFIX + b"0/x", PREFIX + b"0/x"),
        (b"login", b"login", b"login"),
        (b"../up", b"../up", b"../up"),
        (b"?a=1", b"?a=1", b"?a=1"),
        (b"", b"", b""),
        (b"http://localhost:3000/x", PREFIX + b"/x", b"/x"),
        (b"https://127.0.0.1:3000", PREFIX + b"/", b"/"),
        (b"HTTP://LOCALHOST:3000?a=1", PREFIX + b"/?a=1", b"/?a=1"),
        (b"//localhost:3000/x", PREFIX + b"/x", b"/x"),
        (b"http://localhost/x", b"http://localhost/x", b"http://localhost/x"),
        (b"http://localhost:3001/x", b"http://localhost:3001/x", b"http://localhost:3001/x"),
        (b"http://localhost:3000@evil/", b"http://localhost:3000@evil/", None),
        (b"http://evil/?http://localhost:3000/", b"http://evil/?http://localhost:3000/", None),
        (b"https://elsewhere.test/x", b"https://elsewhere.test/x", b"https://elsewhere.test/x"),
        (b"//elsewhere.test/x", b"//elsewhere.test/x", b"//elsewhere.test/x"),
        (b"mailto:a@b", b"mailto:a@b", b"mailto:a@b"),
        (b"https://api.test/x", PREFIX + b"/x", b"https://api.test/x"),
        (b"http://API.test/x", PREFIX + b"/x", b"http://API.test/x"),
        (b"https://api.test" + PREFIX + b"/x", PREFIX + b"/x", None),
        (b"https://api.test:8443/x", b"https://api.test:8443/x", None),
    ],
)
def test_locations_of_the_app_stay_with_it(
    value: bytes, in_path: bytes, on_host: bytes | None
) -> None:
    assert location(value, PATH, CLIENT) == in_path
    if on_host is not None:
        assert location(value, HOST, ON_HOST) == on_host


def test_a_location_on_the_own_preview_host_loses_scheme_and_host() -> None:
    assert location(b"http://web-3000.preview.test/x", HOST, ON_HOST) == b"/x"


@pytest.mark.parametrize(
    ("value", "in_path", "on_host"),
    [
        (b"a=1", b"a=1", b"a=1"),
        (b"a=1; Path=/", b"a=1; Path=" + PREFIX + b"/", b"a=1; Path=/"),
        (b"a=1; path=/x; HttpOnly", b"a=1; Path=" + PREFIX + b"/x; HttpOnly", None),
        (b"a=1;PATH = /x ", b"a=1; Path=" + PREFIX + b"/x", b"a=1;PATH = /x "),
        (b"a=1; Path=" + PREFIX + b"/", b"a=1; Path=" + PREFIX + b"/", None),
        (b"a=1; Path=; Secure", b"a=1; Secure", b"a=1; Path=; Secure"),
        (b"a=1; Path=x", b"a=1", b"a=1; Path=x"),
        (b"a=1; Domain=preview.test; Path=/", b"a=1; Path=" + PREFIX + b"/", b"a=1; Path=/"),
        (b"a=1; domain", b"a=1", b"a=1"),
        (b"a=x=y; Max-Age=5; SameSite=Lax", b"a=x=y; Max-Age=5; SameSite=Lax", None),
        (b"svc_proxy=1; Path=/", None, None),
        (b" svc_proxy =1", None, None),
        (b"=svc_proxy=1", None, None),
        (b"svc_proxy", None, None),
        (b"svc_proxy2=1", b"svc_proxy2=1", b"svc_proxy2=1"),
        (b"SVC_PROXY=1", b"SVC_PROXY=1", b"SVC_PROXY=1"),
        (b"", b"", b""),
    ],
)
def test_cookies_of_the_app_stay_with_it(
    value: bytes, in_path: bytes | None, on_host: bytes | None
) -> None:
    assert set_cookie(value, PATH) == in_path
    if on_host is not None or in_path is None:
        assert set_cookie(value, HOST) == on_host


def test_an_answer_keeps_its_lines() -> None:
    lines = [
        (b"x-a", b"1"),
        (b"connection", b"close, X-Private"),
        (b"set-cookie", b"a=1"),
        (b"x-private", b"1"),
        (b"set-cookie", b"svc_proxy=1"),
        (b"x-a", b"2"),
        (b"upgrade", b"h2c"),
        (b"proxy-authenticate", b"Basic"),
        (b"service-worker-allowed", b"/"),
        (b"strict-transport-security", b"max-age=1"),
        (b"location", b"/x"),
        (b"content-length", b"5"),
    ]
    kept = [
        (b"x-a", b"1"),
        (b"set-cookie", b"a=1"),
        (b"x-a", b"2"),
        (b"location", PREFIX + b"/x"),
        (b"content-length", b"5"),
        (b"referrer-policy", b"same-origin"),
    ]
    assert response_lines(lines, PATH, CLIENT) == kept
    on_host = response_lines(lines, HOST, ON_HOST)
    assert (b"strict-transport-security", b"max-age=1") in on_host
    assert (b"service-worker-allowed", b"/") not in on_host


@pytest.mark.parametrize(
    ("said", "policy"),
    [
        (b"no-referrer", b"no-referrer"),
        (b"Same-Origin", b"same-origin"),
        (b"unsafe-url", b"same-origin"),
        (b"no-referrer, unsafe-url", b"same-origin"),
        (b"", b"same-origin"),
    ],
)
def test_no_app_lets_its_urls_out(said: bytes, policy: bytes) -> None:
    assert response_lines([(b"referrer-policy", said)], PATH, CLIENT) == [
        (b"referrer-policy", policy)
    ]
