"""Classifies errors of an object store.

obstore has no fields for HTTP status and error code. This is the only module that parses its text.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from obstore import exceptions

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z.]{1,64})</Code>")

_FULL = {"InsufficientStorage", "XMinioStorageFull", "InsufficientCapacity"}
_QUOTA = {"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "ServiceQuotaExceeded", "EDQUOT"}
_LATER = {"RequestTimeout", "IncompleteBody", "OperationAborted", "SlowDown", "InternalError"}
"""Codes after which another attempt may succeed, whatever the HTTP status is."""
_LATER_STATUS = {307, 408, 409, 425, 429}
_FULL_STATUS = 507

_PERMANENT = (
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)


class Meaning(Enum):
    """The meaning of an error of obstore."""

    TRANSIENT = auto()  # another attempt may succeed
    MISSING = auto()  # no such object or bucket
    FULL = auto()  # the store has no room
    QUOTA = auto()  # a quota of the volume or the account is used up
    REFUSED = auto()  # missing permission, wrong signature or invalid request


def meaning(error: Exception) -> Meaning:
    """Classify an error of obstore, or an OSError of a connection."""
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
        return Meaning.MISSING
    if isinstance(error, OSError):
        return Meaning.TRANSIENT
    # The rest repeats the same error for debugging.
    text = str(error).partition("Debug source")[0]
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    code = match[1] if (match := _CODE.search(text)) else ""
    if code in _QUOTA:
        return Meaning.QUOTA
    if code in _FULL or status == _FULL_STATUS:
        return Meaning.FULL
    if code in _LATER or status in _LATER_STATUS or status >= 500:
        return Meaning.TRANSIENT
    if status >= 400 or isinstance(error, _PERMANENT):
        return Meaning.REFUSED
    return Meaning.TRANSIENT
