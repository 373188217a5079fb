"""Verifies S3 request signatures, version 4: headers, presigned URLs, streamed payloads.

Pure: no I/O, no clock of its own. A request is accepted if and only if a correct signer creates the
same signature for it. A signature must cover `host` and every `x-amz-*` header of the request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from objectserver.secret import Secret, same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW = timedelta(minutes=15)
"""Maximum difference between the time of a request and the server's clock."""
MAX_EXPIRES = 7 * 24 * 3600
"""Maximum lifetime of a presigned URL, in seconds."""
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
TIME_FORMAT = "%Y%m%dT%H%M%SZ"

_UNRESERVED = "-_.~"
_HEX64 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_AUTHORIZATION = re.compile(
    ALGORITHM + r" +Credential=([^, ]+), *SignedHeaders=([^, ]+), *Signature=([0-9a-f]{64})"
)
_QUERY_FIELDS = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)


class SignatureError(Exception):
    """The request is not signed correctly; `code` is S3's name for the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Payload(Enum):
    """How the signature covers the body."""

    HASHED = "hashed"
    """The signature covers the body's SHA-256."""
    UNSIGNED = "UNSIGNED-PAYLOAD"
    CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    """The body has chunks, each with a signature that continues the previous one."""
    CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    """Like CHUNKS, followed by signed trailing headers."""
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    """The body has chunks without signatures, followed by trailing headers."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as received: `path` and `query` are raw (percent-encoded), header names in lower
    case."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Verified:
    """A request with a valid signature.

    `sha256` is the body's signed hash (hex) if `payload` is HASHED. `chain` continues the signature
    over the chunks of a streamed body.
    """

    access_key: str
    payload: Payload
    sha256: str | None
    chain: ChunkChain


@dataclass(slots=True)
class ChunkChain:
    """The running signature of a streamed payload."""

    key: bytes
    time: str
    scope: str
    signature: str

    def chunk(self, sha256: str) -> str:
        """Return the signature of the next chunk; `sha256` is the hash of its data, hex."""
        return self._next(f"{ALGORITHM}-PAYLOAD", f"{EMPTY_SHA256}\n{sha256}")

    def trailer(self, sha256: str) -> str:
        """Return the signature of the trailing headers; `sha256` of their `name:value\\n` lines."""
        return self._next(f"{ALGORITHM}-TRAILER", sha256)

    def _next(self, kind: str, rest: str) -> str:
        text = f"{kind}\n{self.time}\n{self.scope}\n{self.signature}\n{rest}"
        self.signature = _hmac(self.key, text).hex()
        return self.signature


@dataclass(frozen=True, slots=True)
class _Claim:
    """The parts of a request's signature, before anything is checked."""

    credential: str
    time: str
    signed_headers: str
    signature: str
    expires: timedelta | None
    payload: str


def verify(
    request: Request,
    secret_of: Callable[[str], Secret | None],
    *,
    region: str,
    now: datetime,
) -> Verified:
    """Check a request's signature; `secret_of` returns the secret of an access key.

    Raises SignatureError. An unknown key takes the same time as a wrong signature.
    """
    headers = _index(request.headers)
    query = _split(request.query)
    claim = _claim(headers, query)
    access_key, date, scope = _scope(claim, region)
    _check_time(claim, date, now)
    names = _signed_names(claim, headers)
    secret = secret_of(access_key)
    key = _signing_key(secret or Secret("unknown"), date, region)
    if not _matches(request, claim, names, headers, query, key, scope) or secret is None:
        raise SignatureError("SignatureDoesNotMatch", "the signature does not match the request")
    payload = Payload.HASHED if _HEX64.fullmatch(claim.payload) else Payload(claim.payload)
    return Verified(
        access_key,
        payload,
        claim.payload if payload is Payload.HASHED else None,
        ChunkChain(key, claim.time, scope, claim.signature),
    )


def _index(headers: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return values


def _split(query: str) -> list[tuple[str, str]]:
    """Return raw (name, value) pairs."""
    pairs = [part.partition("=") for part in query.split("&") if part]
    return [(name, value) for name, _, value in pairs]


def _only(headers: dict[str, list[str]], name: str) -> str | None:
    values = headers.get(name, [])
    if len(values) > 1:
        raise SignatureError("InvalidRequest", f"header {name} is sent twice")
    return values[0] if values else None


def _claim(headers: dict[str, list[str]], query: list[tuple[str, str]]) -> _Claim:
    authorization = _only(headers, "authorization")
    presigned = any(name in _QUERY_FIELDS for name, _ in query)
    payload = _only(headers, "x-amz-content-sha256")
    if authorization is not None and presigned:
        raise SignatureError("InvalidArgument", "the request is signed both by header and by query")
    if authorization is None and not presigned:
        raise SignatureError("AccessDenied", "the request is not signed")
    if authorization is None:
        return _query_claim(query, payload)
    match = _AUTHORIZATION.fullmatch(authorization)
    if match is None:
        raise SignatureError(
            "AuthorizationHeaderMalformed", "the Authorization header is malformed"
        )
    time = _only(headers, "x-amz-date")
    if time is None:
        raise SignatureError("AccessDenied", "a signed request needs the header x-amz-date")
    if payload is None:
        raise SignatureError("InvalidRequest", "the header x-amz-content-sha256 is missing")
    credential, names, signature = match.groups()
    return _Claim(credential, time, names, signature, None, _checked_payload(payload))


def _query_claim(query: list[tuple[str, str]], payload: str | None) -> _Claim:
    values: dict[str, str] = {}
    for name, value in query:
        if name in _QUERY_FIELDS:
            if name in values:
                raise SignatureError(
                    "InvalidArgument", f"the request has query parameter {name} twice"
                )
            values[name] = unquote_to_bytes(value).decode("utf-8", "replace")
    for name in _QUERY_FIELDS:
        if name not in values:
            raise SignatureError("AuthorizationQueryParametersError", f"{name} is missing")
    expires = values["X-Amz-Expires"]
    if not (expires.isascii() and expires.isdigit() and len(expires) < 8):
        raise SignatureError("AuthorizationQueryParametersError", "X-Amz-Expires is not a number")
    if values["X-Amz-Algorithm"] != ALGORITHM or not 1 <= int(expires) <= MAX_EXPIRES:
        raise SignatureError(
            "AuthorizationQueryParametersError", "the algorithm or the expiry is invalid"
        )
    return _Claim(
        values["X-Amz-Credential"],
        values["X-Amz-Date"],
        values["X-Amz-SignedHeaders"],
        values["X-Amz-Signature"],
        timedelta(seconds=int(expires)),
        _checked_payload(payload or Payload.UNSIGNED.value),
    )


def _checked_payload(value: str) -> str:
    if _HEX64.fullmatch(value) or value in {p.value for p in Payload if p is not Payload.HASHED}:
        return value
    raise SignatureError(
        "InvalidRequest", "x-amz-content-sha256 is neither a hash nor a known payload type"
    )


def _scope(claim: _Claim, region: str) -> tuple[str, str, str]:
    """Return (access key, date, scope) of the credential."""
    parts = claim.credential.split("/")
    if len(parts) != 5:
        raise SignatureError("AuthorizationHeaderMalformed", "the credential is malformed")
    access_key, date, *rest = parts
    if rest != [region, "s3", "aws4_request"]:
        raise SignatureError(
            "AuthorizationHeaderMalformed",
            f"the credential's region and service are not {region}/s3",
        )
    return access_key, date, "/".join(parts[1:])


def _check_time(claim: _Claim, date: str, now: datetime) -> None:
    if not _TIME.fullmatch(claim.time) or not claim.time.startswith(date) or len(date) != 8:
        raise SignatureError(
            "AccessDenied", "x-amz-date is malformed or differs from the credential's date"
        )
    try:
        signed = datetime.strptime(claim.time, TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        raise SignatureError("AccessDenied", "x-amz-date is not a time") from None
    if claim.expires is None:
        if abs(now - signed) > MAX_SKEW:
            raise SignatureError(
                "RequestTimeTooSkewed", "the request's time differs too much from the server's"
            )
    elif signed - now > MAX_SKEW:
        raise SignatureError("AccessDenied", "the presigned URL is not valid yet")
    elif now > signed + claim.expires:
        raise SignatureError("AccessDenied", "the presigned URL has expired")


def _signed_names(claim: _Claim, headers: dict[str, list[str]]) -> list[str]:
    names = claim.signed_headers.split(";")
    if names != sorted(set(names)) or any(name != name.lower() for name in names):
        raise SignatureError("AuthorizationHeaderMalformed", "SignedHeaders is not a sorted list")
    if "host" not in names:
        raise SignatureError("AccessDenied", "the header host must be signed")
    for name in names:
        if name not in headers:
            raise SignatureError("AccessDenied", f"the signed header {name} is missing")
        _only(headers, name)
    for name in headers:
        if name.startswith("x-amz-") and name not in names:
            raise SignatureError("AccessDenied", f"the header {name} must be signed")
    return names


def _matches(
    request: Request,
    claim: _Claim,
    names: list[str],
    headers: dict[str, list[str]],
    query: list[tuple[str, str]],
    key: bytes,
    scope: str,
) -> bool:
    """Return whether the signature matches the request, with its query as sent or normalised.

    Both forms have the same meaning, so accepting either is safe. Some clients sign the query as
    they send it; others sign the normalised form and let the HTTP library encode it.
    """
    fields = "".join(f"{name}:{' '.join(headers[name][0].split())}\n" for name in names)
    pairs = [pair for pair in query if pair[0] != "X-Amz-Signature"]
    for spelling in (pairs, [(_normalised(name), _normalised(value)) for name, value in pairs]):
        canonical_query = "&".join(f"{name}={value}" for name, value in sorted(spelling))
        canonical = (
            f"{request.method}\n{request.path}\n{canonical_query}\n"
            f"{fields}\n{claim.signed_headers}\n{claim.payload}"
        )
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
        text = f"{ALGORITHM}\n{claim.time}\n{scope}\n{digest}"
        if same(_hmac(key, text).hex(), claim.signature):
            return True
    return False


def _normalised(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ")), safe=_UNRESERVED)


def _signing_key(secret: Secret, date: str, region: str) -> bytes:
    return _derived(secret.reveal(), date, region)


@lru_cache(maxsize=4096)
def _derived(secret: str, date: str, region: str) -> bytes:
    key = _hmac(b"AWS4" + secret.encode("utf-8"), date)
    for part in (region, "s3", "aws4_request"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256")
