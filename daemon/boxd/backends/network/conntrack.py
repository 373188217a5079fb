"""Deletes the kernel's connection tracking entries of a removed box.

Otherwise they would count against the next box at the same address, and their peers could still
send to it. One netlink message deletes all entries of an address. Old kernels reject it, and delete
the entries when they expire.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address

_NETLINK_NETFILTER = 12
_DELETE = 1 << 8 | 2
"""Message type of the connection tracking subsystem."""
_REQUEST_ACKNOWLEDGED = 1 | 4
_NESTED = 0x8000
_TUPLE_ORIGINAL, _TUPLE_ADDRESSES, _SOURCE = 1 | _NESTED, 1 | _NESTED, 1
_FILTER, _FILTER_ORIGINAL, _BY_SOURCE = 25 | _NESTED, 1, 1 << 0
_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct("=BBH")
_ERROR = struct.Struct("=i")
_ANSWER_SIZE = 4096
_TIMEOUT = 5.0


def forget(box: IPv4Address) -> None:
    """Delete the entries of connections from an address. Raises OSError."""
    body = _FAMILY.pack(socket.AF_INET, 0, 0) + _request(box)
    message = _HEADER.pack(_HEADER.size + len(body), _DELETE, _REQUEST_ACKNOWLEDGED, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.bind((0, 0))
        kernel.send(message)
        answer = kernel.recv(_ANSWER_SIZE)
    (status,) = _ERROR.unpack_from(answer, _HEADER.size)
    if status != 0:
        raise OSError(-status, os.strerror(-status))


def _request(box: IPv4Address) -> bytes:
    """Encode a filter for connections whose first packet came from `box`, to any peer."""
    addresses = _attribute(_TUPLE_ADDRESSES, _attribute(_SOURCE, box.packed))
    which = _attribute(_FILTER_ORIGINAL, struct.pack("=I", _BY_SOURCE))
    return _attribute(_TUPLE_ORIGINAL, addresses) + _attribute(_FILTER, which)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value
