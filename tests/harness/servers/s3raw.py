"""Raw requests to the object server, signed by botocore."""

from __future__ import annotations

import hashlib
import http.client
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

if TYPE_CHECKING:
    from wrkfs.config import StoreConfig

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, S3 error code (empty if none), headers in lower case, and body."""

    status: int
    code: str
    headers: dict[str, str]
    body: bytes


def signed_headers(
    store: StoreConfig,
    method: str,
    target: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    payload: str | None = None,
) -> dict[str, str]:
    """Return the headers of a request for `target` (raw path and query), with its signature.

    `payload` is the signed hash of the body; the default is the body's SHA-256.
    """
    word = payload or hashlib.sha256(body).hexdigest()

    class Signer(S3SigV4Auth):
        def payload(self, request: AWSRequest) -> str:
            return word

    request = AWSRequest(method, store.endpoint + target, headers=headers or {})
    credentials = Credentials(store.access_key, store.secret_key)
    Signer(credentials, "s3", store.region).add_auth(request)
    found = {name: str(value) for name, value in request.headers.items()}
    return {"Host": urlsplit(store.endpoint).netloc, "X-Amz-Content-SHA256": word, **found}


def send(
    store: StoreConfig,
    method: str,
    target: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    payload: str | None = None,
) -> Answer:
    """Sign and send one request on a new connection."""
    head = signed_headers(store, method, target, headers=headers, body=body, payload=payload)
    return exchange(store, method, target, list(head.items()), body)


def exchange(
    store: StoreConfig, method: str, target: str, headers: list[tuple[str, str]], body: bytes
) -> Answer:
    """Send one request unchanged; a request with a body gets Content-Length."""
    parts = urlsplit(store.endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if (body or method in ("PUT", "POST")) and "content-length" not in {
            name.lower() for name, _ in headers
        }:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        return read_answer(connection.getresponse())
    finally:
        connection.close()


def read_answer(response: http.client.HTTPResponse) -> Answer:
    """Return the whole answer."""
    body = response.read()
    code = ""
    if response.status >= 400 and b"<Code>" in body:
        code = body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, code, headers, body)
