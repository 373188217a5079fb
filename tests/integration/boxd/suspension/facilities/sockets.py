"""Sockets of each family."""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import (
    LOCALHOST,
    connected,
    facility,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@facility
def listening_socket_with_a_backlog() -> Iterator[None]:
    server = socket.create_server((LOCALHOST, 0), backlog=17)
    yield
    client = socket.create_connection(server.getsockname())
    server.accept()[0].send(b"x")
    assert client.recv(1) == b"x"


@facility
def tcp_connection() -> Iterator[None]:
    client, peer = connected()
    yield
    client.send(b"x")
    assert peer.recv(1) == b"x"


@facility
def tcp6_connection() -> Iterator[None]:
    client, peer = connected(socket.AF_INET6)
    yield
    peer.send(b"x")
    assert client.recv(1) == b"x"


@facility
def tcp_data_in_both_queues() -> Iterator[None]:
    client, peer = connected()
    client.send(b"there")
    peer.send(b"back")
    yield
    assert (peer.recv(99), client.recv(99)) == (b"there", b"back")


@facility
def tcp_data_that_the_peer_has_no_room_for() -> Iterator[None]:
    client, peer = connected()
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(b"x" * 65536)
    except BlockingIOError:
        pass
    yield
    while sent:
        sent -= len(peer.recv(1 << 20))


@facility
def tcp_options() -> Iterator[None]:
    client, peer = connected()
    options = (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 78),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
    )
    for option in options:
        client.setsockopt(*option)
    yield
    assert peer.fileno() >= 0
    lost = [option for option in options if client.getsockopt(*option[:2]) != option[2]]
    assert not lost, lost


@facility
def socket_buffer_sizes() -> Iterator[None]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOCALHOST, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 60000)
    yield
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100000
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 120000


@facility
def socket_linger() -> Iterator[None]:
    client, peer = connected()
    value = struct.pack("ii", 1, 9)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value)
    yield
    assert peer.fileno() >= 0
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == value


@facility
def type_of_service() -> Iterator[None]:
    client, peer = connected()
    client.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    yield
    assert peer.fileno() >= 0
    assert client.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x10


@facility
def socket_timeouts() -> Iterator[None]:
    client, peer = connected()
    value = struct.pack("qq", 7, 0)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    yield
    assert peer.fileno() >= 0
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == value


@facility
def udp_bound_and_connected() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    first.bind((LOCALHOST, 0))
    second.connect(first.getsockname())
    yield
    second.send(b"x")
    assert first.recv(9) == b"x"


@facility
def udp_datagrams_in_the_queue() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    first.bind((LOCALHOST, 0))
    second.sendto(b"kept", first.getsockname())
    yield
    first.settimeout(2)
    assert first.recv(9) == b"kept"


@facility
def unix_stream_with_data() -> Iterator[None]:
    first, second = socket.socketpair()
    first.send(b"kept")
    yield
    assert second.recv(9) == b"kept"


@facility
def unix_datagrams_in_the_queue() -> Iterator[None]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    first.send(b"one")
    first.send(b"two")
    yield
    second.settimeout(2)
    assert (second.recv(9), second.recv(9)) == (b"one", b"two")


@facility
def unix_datagrams_at_a_name() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    first.bind("/root/datagrams")
    second.sendto(b"kept", "/root/datagrams")
    yield
    first.settimeout(2)
    assert first.recv(9) == b"kept"


@facility
def unix_packets_in_the_queue() -> Iterator[None]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.send(b"one")
    first.send(b"two")
    yield
    second.settimeout(2)
    assert (second.recv(9), second.recv(9)) == (b"one", b"two")


@facility
def abstract_unix_socket() -> Iterator[None]:
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0facility")
    server.listen()
    yield
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0facility")
    server.accept()


@facility
def unix_stream_closed_in_one_direction() -> Iterator[None]:
    first, second = socket.socketpair()
    first.shutdown(socket.SHUT_WR)
    yield
    second.send(b"x")
    assert (first.recv(9), second.recv(9)) == (b"x", b"")


@facility
def descriptor_in_flight() -> Iterator[None]:
    first, second = socket.socketpair()
    reading, writing = os.pipe()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reading]))]
    first.sendmsg([b"x"], rights)
    os.write(writing, b"kept")
    yield
    _, [(_, _, data)], _, _ = second.recvmsg(9, 99)
    assert os.read(struct.unpack("i", data[:4])[0], 9) == b"kept"


@facility
def netlink_socket() -> Iterator[None]:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.bind((0, 0))
    yield
    sock.send(struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))
    assert sock.recv(65536)


@facility
def unix_connection_of_another_user() -> Iterator[None]:
    """The server asks for the user at the other end (SO_PEERCRED)."""
    server = socket.socket(socket.AF_UNIX)
    server.bind("/tmp/server-of-users")
    os.chown("/tmp/server-of-users", 1000, 1000)
    server.listen()
    child = os.fork()
    if child == 0:
        os.setgid(1000)
        os.setuid(1000)
        client = socket.socket(socket.AF_UNIX)
        client.connect("/tmp/server-of-users")
        client.recv(1)
        os._exit(0)
    connection, _ = server.accept()
    before = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    assert struct.unpack("3i", before) == (child, 1000, 1000)
    yield
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) == before
