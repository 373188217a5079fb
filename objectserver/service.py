"""Authenticates requests, restricts them to the credential's prefix, and dispatches them.

The order matters: signature, then bucket, then prefix, and only then anything that depends on
stored objects. So nothing outside of a credential's prefix answers differently if it exists.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote_to_bytes

from objectserver.errors import S3Error, denied
from objectserver.files import DamagedObject, NoSuchObject, ObjectExists
from objectserver.http import HttpResponse
from objectserver.names import BadKey, check_key
from objectserver.sigv4 import Payload, Request, SignatureError, Verified, verify
from objectserver.xml import render

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from objectserver.http import Connection, HttpRequest
    from objectserver.keys import Credential, KeyTable

log = logging.getLogger(__name__)

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_SIGNATURE_PARAMETERS = {
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-content-sha256",
    "x-id",
}
_KNOWN_PARAMETERS = {
    "continuation-token",
    "delete",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "key-marker",
    "list-type",
    "location",
    "marker",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "partnumber",
    "prefix",
    "start-after",
    "upload-id-marker",
    "uploadid",
    "uploads",
}


@dataclass(slots=True)
class Call:
    """One authenticated request, decoded. `key` is empty for the bucket itself."""

    http: HttpRequest
    connection: Connection
    credential: Credential
    verified: Verified
    key: str
    query: dict[str, str]


Action: TypeAlias = "Callable[[Call], Awaitable[HttpResponse]]"


class Service:
    """Authenticates and dispatches. `actions` maps (target, method, subresource) to a handler.

    The target is `root`, `bucket` or `object`; the subresource is the name of a query parameter, or
    empty.
    """

    def __init__(
        self,
        keys: KeyTable,
        actions: dict[tuple[str, str, str], Action],
        *,
        bucket: str,
        region: str,
        unsigned_payload: bool,
    ) -> None:
        self._keys = keys
        self._actions = actions
        self._bucket = bucket
        self._region = region
        self._unsigned_payload = unsigned_payload

    async def handle(self, request: HttpRequest, connection: Connection) -> HttpResponse:
        """Answer a request.

        Raises S3Error for every failure, ConnectionError if the client disconnects.
        """
        try:
            call, target = self._authenticate(request, connection)
            action = self._actions.get((target, request.method, _subresource(call.query)))
            if action is None:
                raise S3Error("NotImplemented", "this operation is not supported")
            return await action(call)
        except SignatureError as error:
            raise S3Error(error.code, str(error)) from None
        except BadKey as error:
            raise S3Error("InvalidArgument", str(error)) from None
        except NoSuchObject:
            raise S3Error("NoSuchKey", "the object does not exist") from None
        except ObjectExists:
            raise S3Error("PreconditionFailed", "the object already exists") from None
        except DamagedObject as error:
            log.error("a stored object is damaged: %s", error)
            # Not a 5xx status: a retry does not help.
            raise S3Error("InvalidObjectState", "the stored object is damaged") from None
        except ConnectionError:
            raise
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise S3Error(
                    "InsufficientStorage", "the disk of the object server is full"
                ) from None
            log.error("%s failed: %s", request.method, error.strerror)
            raise S3Error("InternalError", "the disk reported an error") from None

    def _authenticate(self, request: HttpRequest, connection: Connection) -> tuple[Call, str]:
        verified = verify(
            Request(request.method, request.path, request.query, request.header_list),
            self._keys.secret_of,
            region=self._region,
            now=datetime.now(UTC),
        )
        credential = self._keys.find(verified.access_key)
        if credential is None:
            raise denied()
        if not self._unsigned_payload and verified.payload in (
            Payload.UNSIGNED,
            Payload.UNSIGNED_TRAILER,
        ):
            raise S3Error("AccessDenied", "the body must be signed")
        bucket, _, raw_key = request.path.removeprefix("/").partition("/")
        query = _query(request.query)
        key = _decoded(raw_key)
        target = "object" if key else "bucket" if bucket else "root"
        call = Call(request, connection, credential, verified, key, query)
        self._confine(call, _decoded(bucket), target)
        return call, target

    def _confine(self, call: Call, bucket: str, target: str) -> None:
        """Reject everything that is not below the credential's prefix."""
        credential = call.credential
        if target != "root" and bucket != self._bucket:
            raise (
                S3Error("NoSuchBucket", "the bucket does not exist")
                if credential.is_admin
                else denied()
            )
        if target == "object":
            if not credential.may(call.key):
                raise denied()
            check_key(call.key)
        unknown = call.query.keys() - _KNOWN_PARAMETERS - _SIGNATURE_PARAMETERS
        if any(not name.startswith("response-") for name in unknown):
            if target == "object" or credential.is_admin:
                raise S3Error("NotImplemented", "this operation is not supported")
            raise denied()


def error_response(error: S3Error) -> HttpResponse:
    """Return the answer for an error; it repeats nothing of the request."""
    body = render("Error", [("Code", error.code), ("Message", error.text)], namespace=False)
    return HttpResponse(error.status, [("Content-Type", "application/xml")], body)


def _query(raw: str) -> dict[str, str]:
    """Return the decoded parameters, names in lower case. Raises S3Error for a repeated one."""
    parameters: dict[str, str] = {}
    for part in raw.split("&") if raw else ():
        name, _, value = part.replace("+", " ").partition("=")
        name = _decoded(name).lower()
        if name in parameters:
            raise S3Error("InvalidArgument", "a query parameter is sent twice")
        if name:
            parameters[name] = _decoded(value)
    return parameters


def _subresource(query: dict[str, str]) -> str:
    """Return the parameter that selects the operation: S3 allows at most one in a request."""
    subresources = [name for name in ("uploads", "uploadid", "delete", "location") if name in query]
    if len(subresources) > 1:
        raise S3Error("InvalidArgument", "the request has more than one subresource")
    return subresources[0] if subresources else ""


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidArgument", "the URL is not UTF-8") from None
