"""Netlink messages of a link that goes down, with a real socket."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from boxd.backends.checkpoint import netlink_events

GET_LINKS = struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0)
TABLE = """\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000000000000 0   4120       00000001 0        0        0     2        0        77
0000000000000000 0   0          00000000 2304     0        0     2        0        78
"""


def test_sockets_with_unread_messages() -> None:
    assert netlink_events.parse(TABLE) == {78}
    assert netlink_events.unread([1 << 22]) == frozenset()


def test_new_messages_are_taken_away_and_older_ones_stay() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.bind((0, 0))
        sock.send(GET_LINKS)
        inode = os.fstat(sock.fileno()).st_ino
        assert inode in netlink_events.unread([os.getpid()])
        netlink_events.take_away([os.getpid()], frozenset({inode}))
        assert inode in netlink_events.unread([os.getpid()])
        netlink_events.take_away([os.getpid()], frozenset())
        with pytest.raises(BlockingIOError):
            sock.recv(1, socket.MSG_DONTWAIT)
