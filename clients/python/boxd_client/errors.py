"""Errors of the client. Each one is a `BoxError`.

::

    BoxError
    ├── ConfigurationError      no URL or no API key, or one that cannot be valid
    ├── ServiceError            the service refused; it has `status` and `request_id`
    │   ├── InvalidRequest      400, 405, 406, 415, 416, 422, 426
    │   ├── Unauthorized        401
    │   ├── Forbidden           403
    │   ├── NotFound            404
    │   ├── Conflict            409
    │   ├── PreconditionFailed  412
    │   ├── TooLarge            413
    │   ├── QuotaExceeded       429, with `retry_after`
    │   ├── StorageFull         507
    │   └── ServiceFailed       every other status of 5xx
    │       └── Unavailable     503, with `retry_after`
    ├── ConnectionLost          no connection, or one that broke before the answer was complete
    │   └── RequestTimeout      the service was silent for too long
    ├── ProtocolError           the answer breaks the rules of the API
    ├── AnswerTooLarge          the answer is larger than the caller allows
    └── CommandFailed           a command with `check=True` ended with another code than 0
"""

from __future__ import annotations


class BoxError(Exception):
    """Base class of all errors of this library."""


class ConfigurationError(BoxError):
    """The URL or the API key is missing or cannot be valid."""


class ServiceError(BoxError):
    """The service refused the request. `request_id` identifies it in the log of the service."""

    def __init__(self, text: str, status: int = 0, request_id: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.request_id = request_id


class InvalidRequest(ServiceError):
    """The service does not accept the request; the text names the mistake."""


class Unauthorized(ServiceError):
    """The API key is missing, unknown, revoked or expired."""


class Forbidden(ServiceError):
    """The API key does not allow the request."""


class NotFound(ServiceError):
    """No such box, file, command or other object."""


class Conflict(ServiceError):
    """The current state does not allow the request."""


class PreconditionFailed(ServiceError):
    """The file has another entity tag than the request requires."""


class TooLarge(ServiceError):
    """The service does not accept input or output of this size."""


class QuotaExceeded(ServiceError):
    """A limit is reached. `retry_after`: seconds after which a retry is useful, or None."""

    retry_after: float | None = None


class StorageFull(ServiceError):
    """The disk of the box, or the drive, is full."""


class ServiceFailed(ServiceError):
    """The service, or the program behind a port, failed."""


class Unavailable(ServiceFailed):
    """The service cannot answer now. `retry_after`: seconds to wait, or None."""

    retry_after: float | None = None


class ConnectionLost(BoxError):
    """There is no connection, or it broke before the answer was complete."""


class RequestTimeout(ConnectionLost):
    """The service did not answer in time."""


class ProtocolError(BoxError):
    """The answer breaks the rules of the API. The URL may be that of another service."""


class AnswerTooLarge(BoxError):
    """The answer is larger than the limit of the caller."""


BY_STATUS: dict[int, type[ServiceError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: TooLarge,
    429: QuotaExceeded,
    503: Unavailable,
    507: StorageFull,
}
"""The class of a status. All others of 4xx are `InvalidRequest`, of 5xx `ServiceFailed`."""
