"""Signatures, against botocore's own signer: accepted iff it makes the same."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objectserver.secret import Secret
from objectserver.sigv4 import (
    EMPTY_SHA256,
    TIME_FORMAT,
    ChunkChain,
    Payload,
    Request,
    SignatureError,
    Verified,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KEY, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1"
HOST = "127.0.0.1:9000"


def lookup(access_key: str) -> Secret | None:
    return Secret(SECRET) if access_key == KEY else None


def signed(
    method: str = "GET",
    path: str = "/bucket/key",
    query: str = "",
    headers: dict[str, str] | None = None,
    payload: str = EMPTY_SHA256,
    *,
    key: str = KEY,
    secret: str = SECRET,
    region: str = REGION,
) -> Request:
    """A request as botocore signs it now, with headers."""
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    sent = {"X-Amz-Content-SHA256": payload, **(headers or {})}
    request = AWSRequest(method=method, url=url, headers=sent, data=None)
    request.context["payload_signing_enabled"] = True

    class Signer(S3SigV4Auth):
        def payload(self, request: AWSRequest) -> str:
            return payload

    Signer(Credentials(key, secret), "s3", region).add_auth(request)
    parts = urlsplit(str(request.url))
    pairs = [(name.lower(), str(value)) for name, value in request.headers.items()]
    return Request(method, parts.path, parts.query, [("host", HOST), *pairs])


def presigned(method: str = "GET", path: str = "/bucket/key", expires: int = 60) -> Request:
    request = AWSRequest(method=method, url=f"http://{HOST}{path}")
    S3SigV4QueryAuth(Credentials(KEY, SECRET), "s3", REGION, expires=expires).add_auth(request)
    parts = urlsplit(str(request.url))
    return Request(method, parts.path, parts.query, [("host", HOST)])


def check(request: Request, now: datetime | None = None) -> Verified:
    return verify(request, lookup, region=REGION, now=now or datetime.now(UTC))


def refused(request: Request, now: datetime | None = None) -> str:
    with pytest.raises(SignatureError) as error:
        check(request, now)
    assert SECRET not in str(error.value)
    return error.value.code


def changed(request: Request, name: str, change: Callable[[str], str]) -> Request:
    headers = [(n, change(v) if n == name else v) for n, v in request.headers]
    assert headers != list(request.headers)
    return Request(request.method, request.path, request.query, headers)


NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST"]),
    segments=st.lists(NAMES, min_size=1, max_size=4),
    query=st.dictionaries(NAMES, NAMES, max_size=4),
    meta=st.dictionaries(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), NAMES, max_size=3),
    body=st.binary(max_size=30),
)
def test_what_botocore_signs_is_accepted_and_any_change_refused(
    method: str,
    segments: list[str],
    query: dict[str, str],
    meta: dict[str, str],
    body: bytes,
) -> None:
    path = "/bucket/" + "/".join(quote(segment, safe="~") for segment in segments)
    text = urlencode(query, quote_via=quote, safe="~")
    headers = {f"x-amz-meta-{name}": quote(value) for name, value in meta.items()}
    digest = hashlib.sha256(body).hexdigest()
    request = signed(method, path, text, headers, digest)
    verified = check(request)
    assert (verified.access_key, verified.payload, verified.sha256) == (
        KEY,
        Payload.HASHED,
        digest,
    )
    other = "PUT" if method != "PUT" else "GET"
    assert refused(Request(other, path, text, request.headers)) == "SignatureDoesNotMatch"
    for altered in (path + "x", path.replace("/bucket/", "/bucket//", 1), "/" + path):
        changed_path = Request(method, altered, text, request.headers)
        assert refused(changed_path) == "SignatureDoesNotMatch"
    extra = Request(method, path, f"{text}&zz=1".removeprefix("&"), request.headers)
    assert refused(extra) == "SignatureDoesNotMatch"
    for name in headers:
        assert refused(changed(request, name, lambda value: value + "x")) == "SignatureDoesNotMatch"


def test_the_query_may_be_sent_in_any_spelling_that_means_the_same() -> None:
    request = signed(query="delimiter=%2F&list-type=2&prefix=a%20b")
    for spelling in (
        "prefix=a%20b&list-type=2&delimiter=%2F",
        "delimiter=/&list-type=2&prefix=a+b",
        "delimiter=%2f&list-type=2&prefix=a%20b",
    ):
        check(Request("GET", request.path, spelling, request.headers))
    other = Request("GET", request.path, "delimiter=%2F&list-type=2&prefix=a%2Bb", request.headers)
    assert refused(other) == "SignatureDoesNotMatch"


def test_wrong_credentials_region_and_service() -> None:
    assert refused(signed(key="OTHER")) == "SignatureDoesNotMatch"
    assert refused(signed(secret=SECRET + "x")) == "SignatureDoesNotMatch"
    assert refused(signed(region="eu-west-1")) == "AuthorizationHeaderMalformed"
    request = signed()
    for change in (
        lambda v: v.replace("/s3/", "/sts/"),
        lambda v: v.replace("/aws4_request", "/aws4"),
        lambda v: v.replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
        lambda v: v.replace("Signature=", "Signature=0"),
        lambda v: v[:-1],
        lambda v: "Basic " + v,
        lambda v: v.replace("SignedHeaders=", "SignedHeaders=;"),
        lambda v: v.replace("host;", ""),
        lambda v: v.replace("host;x-amz-content-sha256", "x-amz-content-sha256;host"),
    ):
        altered = changed(request, "authorization", change)
        assert refused(altered) in ("AuthorizationHeaderMalformed", "AccessDenied")


@pytest.mark.parametrize(
    ("drop", "code"),
    [
        ("authorization", "AccessDenied"),
        ("x-amz-date", "AccessDenied"),
        ("x-amz-content-sha256", "InvalidRequest"),
        ("host", "AccessDenied"),
    ],
)
def test_missing_headers(drop: str, code: str) -> None:
    request = signed()
    headers = [(name, value) for name, value in request.headers if name != drop]
    assert refused(Request("GET", request.path, "", headers)) == code


@pytest.mark.parametrize("name", ["authorization", "x-amz-date", "x-amz-content-sha256", "host"])
def test_doubled_headers(name: str) -> None:
    request = signed()
    value = dict(request.headers)[name]
    doubled = Request("GET", request.path, "", [*request.headers, (name, value)])
    assert refused(doubled) == "InvalidRequest"


def test_an_unsigned_amz_header_is_refused() -> None:
    request = signed()
    extra = [*request.headers, ("x-amz-copy-source", "/bucket/other")]
    assert refused(Request("GET", request.path, "", extra)) == "AccessDenied"
    harmless = [*request.headers, ("user-agent", "x")]
    check(Request("GET", request.path, "", harmless))


def test_time() -> None:
    request = signed()
    now = datetime.now(UTC)
    for offset in (timedelta(minutes=14), timedelta(minutes=-14)):
        check(request, now + offset)
    for offset in (timedelta(minutes=16), timedelta(minutes=-16), timedelta(days=400)):
        assert refused(request, now + offset) == "RequestTimeTooSkewed"
    for text in ("20261332T000000Z", "yesterday", "20200101T000000Z", "2020-01-01T00:00:00Z"):
        headers = [(n, text if n == "x-amz-date" else v) for n, v in request.headers]
        altered = Request("GET", request.path, "", headers)
        assert refused(altered) == "AccessDenied"


def test_payload_words() -> None:
    for payload in Payload:
        if payload is not Payload.HASHED:
            assert check(signed(payload=payload.value)).payload is payload
    for text in ("", "unsigned", EMPTY_SHA256.upper(), EMPTY_SHA256[:-1]):
        assert refused(signed(payload=text)) == "InvalidRequest"


def test_presigned() -> None:
    request = presigned()
    now = datetime.now(UTC)
    verified = check(request)
    assert verified.payload is Payload.UNSIGNED
    check(request, now + timedelta(seconds=50))
    assert refused(request, now + timedelta(seconds=70)) == "AccessDenied"
    assert refused(request, now - timedelta(minutes=16)) == "AccessDenied"
    for method in ("PUT", "HEAD"):
        altered = Request(method, request.path, request.query, request.headers)
        assert refused(altered) == "SignatureDoesNotMatch"
    other = Request("GET", "/bucket/other", request.query, request.headers)
    assert refused(other) == "SignatureDoesNotMatch"
    other = Request("GET", request.path, request.query, [("host", "elsewhere")])
    assert refused(other) == "SignatureDoesNotMatch"
    longer = request.query.replace("X-Amz-Expires=60", "X-Amz-Expires=600")
    assert refused(Request("GET", request.path, longer, request.headers)) == "SignatureDoesNotMatch"
    extra = Request("GET", request.path, request.query + "&versionId=1", request.headers)
    assert refused(extra) == "SignatureDoesNotMatch"
    both = Request("GET", request.path, request.query, signed().headers)
    assert refused(both) == "InvalidArgument"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("X-Amz-Expires=60", "X-Amz-Expires=0", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=60", "X-Amz-Expires=604801", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=60", "X-Amz-Expires=-1", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=60", "X-Amz-Expires=60&X-Amz-Expires=60", "InvalidArgument"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=X", None),
        ("X-Amz-SignedHeaders=host", "X-Amz-Other=host", "AuthorizationQueryParametersError"),
    ],
)
def test_malformed_presigned(old: str, new: str, code: str | None) -> None:
    request = presigned()
    assert old in request.query
    altered = Request("GET", request.path, request.query.replace(old, new), request.headers)
    assert refused(altered) == (code or "AuthorizationQueryParametersError")


def test_chunks_continue_the_seed_signature() -> None:
    """The example of Amazon's documentation, a public test vector."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    key = b"AWS4" + secret.encode()

    for part in ("20130524", "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    chain = ChunkChain(
        key,
        "20130524T000000Z",
        "20130524/us-east-1/s3/aws4_request",
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    )
    assert (
        chain.chunk(hashlib.sha256(b"a" * 65536).hexdigest())
        == "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
    )
    assert (
        chain.chunk(hashlib.sha256(b"a" * 1024).hexdigest())
        == "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
    )
    assert (
        chain.chunk(EMPTY_SHA256)
        == "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"
    )


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_authorization_text_gives_the_declared_error(text: str) -> None:
    stamp = datetime.now(UTC).strftime(TIME_FORMAT)
    headers = [
        ("host", HOST),
        ("x-amz-date", stamp),
        ("x-amz-content-sha256", EMPTY_SHA256),
        ("authorization", text),
    ]
    refused(Request("GET", "/bucket/key", "", headers))
