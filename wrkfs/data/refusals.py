"""What an object store's refusal means. obstore tells statuses and codes in its text alone.

This is the only place that reads that text.
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
"""Codes that ask for another attempt, whatever status they come with."""
_LATER_STATUS = {307, 408, 409, 425, 429}
_FULL_STATUS = 507

_PERMANENT = (
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)


class Meaning(Enum):
    """What to do about an error of obstore."""

    TRANSIENT = auto()  # try again
    MISSING = auto()  # no such object or bucket
    FULL = auto()  # no room, until somebody makes some
    QUOTA = auto()  # the volume's, or the account's, limit
    REFUSED = auto()  # rights, signature, a request that makes no sense


def meaning(error: Exception) -> Meaning:
    """Reads an error of obstore, or a connection that was given up (OSError)."""
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
        return Meaning.MISSING
    if isinstance(error, OSError):
        return Meaning.TRANSIENT
    # What follows is a dump of the same for debugging.
    text = str(error).partition("Debug source")[0]
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    if code in _QUOTA:
        return Meaning.QUOTA
    if code in _FULL or status == _FULL_STATUS:
        return Meaning.FULL
    if code in _LATER or status in _LATER_STATUS or status >= 500:
        return Meaning.TRANSIENT
    if status >= 400 or isinstance(error, _PERMANENT):
        return Meaning.REFUSED
    return Meaning.TRANSIENT
