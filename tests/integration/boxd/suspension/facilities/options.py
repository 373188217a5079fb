"""Options and states of sockets."""

from __future__ import annotations

import array
import ctypes
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import LOCALHOST, connected, facility

if TYPE_CHECKING:
    from collections.abc import Iterator

SO_REUSEPORT, SO_BINDTODEVICE, SO_ATTACH_FILTER = 15, 25, 26
MULTICAST = "239.1.2.3"
TCP, UDP, IP, IP6, ANY = (
    socket.IPPROTO_TCP,
    socket.IPPROTO_UDP,
    socket.IPPROTO_IP,
    socket.IPPROTO_IPV6,
    socket.SOL_SOCKET,
)


def _option(name: str, family: int, kind: int, level: int, option: int, value: int) -> None:
    """A program with a bound socket that has an option of one number."""

    def program() -> Iterator[None]:
        sock = socket.socket(family, kind)
        sock.setsockopt(level, option, value)
        before = sock.getsockopt(level, option)
        sock.bind((LOCALHOST if family == socket.AF_INET else "::1", 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        yield
        assert sock.getsockopt(level, option) == before

    program.__name__ = f"socket_option_{name}"
    facility(program)


_INET, _INET6 = socket.AF_INET, socket.AF_INET6
_STREAM, _DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
for _name, _family, _kind, _level, _number, _value in (
    ("priority", _INET, _DGRAM, ANY, 12, 3),
    ("broadcast", _INET, _DGRAM, ANY, socket.SO_BROADCAST, 1),
    ("reuse_port", _INET, _STREAM, ANY, SO_REUSEPORT, 1),
    ("out_of_band_inline", _INET, _STREAM, ANY, socket.SO_OOBINLINE, 1),
    ("lowest_amount", _INET, _STREAM, ANY, socket.SO_RCVLOWAT, 5),
    ("time_stamp", _INET, _DGRAM, ANY, 29, 1),
    ("no_check", _INET, _DGRAM, ANY, 11, 1),
    ("dont_route", _INET, _DGRAM, ANY, socket.SO_DONTROUTE, 1),
    ("busy_poll", _INET, _DGRAM, ANY, 46, 0),
    ("zero_copy", _INET, _STREAM, ANY, 60, 1),
    ("receive_queue_overflow", _INET, _DGRAM, ANY, 40, 1),
    ("tcp_fast_open", _INET, _STREAM, TCP, socket.TCP_FASTOPEN, 5),
    ("tcp_defer_accept", _INET, _STREAM, TCP, socket.TCP_DEFER_ACCEPT, 3),
    ("tcp_user_timeout", _INET, _STREAM, TCP, socket.TCP_USER_TIMEOUT, 30000),
    ("tcp_syn_count", _INET, _STREAM, TCP, socket.TCP_SYNCNT, 3),
    ("tcp_not_sent_low_water", _INET, _STREAM, TCP, socket.TCP_NOTSENT_LOWAT, 4096),
    ("tcp_linger", _INET, _STREAM, TCP, socket.TCP_LINGER2, 7),
    ("tcp_window_clamp", _INET, _STREAM, TCP, socket.TCP_WINDOW_CLAMP, 20000),
    ("time_to_live", _INET, _DGRAM, IP, socket.IP_TTL, 9),
    ("packet_information", _INET, _DGRAM, IP, 8, 1),
    ("receive_time_to_live", _INET, _DGRAM, IP, 12, 1),
    ("receive_errors", _INET, _DGRAM, IP, 11, 1),
    ("path_mtu_discovery", _INET, _DGRAM, IP, 10, 3),
    ("free_bind", _INET, _DGRAM, IP, 15, 1),
    ("multicast_time_to_live", _INET, _DGRAM, IP, socket.IP_MULTICAST_TTL, 8),
    ("multicast_loop", _INET, _DGRAM, IP, socket.IP_MULTICAST_LOOP, 0),
    ("only_version_6", _INET6, _STREAM, IP6, socket.IPV6_V6ONLY, 1),
    ("receive_packet_information_6", _INET6, _DGRAM, IP6, socket.IPV6_RECVPKTINFO, 1),
    ("hops_6", _INET6, _DGRAM, IP6, socket.IPV6_UNICAST_HOPS, 9),
    ("traffic_class_6", _INET6, _DGRAM, IP6, socket.IPV6_TCLASS, 8),
    ("udp_segments", _INET, _DGRAM, UDP, 103, 500),
    ("udp_merged", _INET, _DGRAM, UDP, 104, 1),
):
    _option(_name, _family, _kind, _level, _number, _value)


@facility
def tcp_congestion_control() -> Iterator[None]:
    client, peer = connected()
    client.setsockopt(TCP, socket.TCP_CONGESTION, b"reno")
    yield
    assert peer.fileno() >= 0
    assert client.getsockopt(TCP, socket.TCP_CONGESTION, 16).startswith(b"reno")


@facility
def tcp_corked_data() -> Iterator[None]:
    client, peer = connected()
    client.setsockopt(TCP, socket.TCP_CORK, 1)
    client.send(b"kept")
    yield
    client.setsockopt(TCP, socket.TCP_CORK, 0)
    peer.settimeout(5)
    assert peer.recv(9) == b"kept"


@facility
def tcp_urgent_data() -> Iterator[None]:
    client, peer = connected()
    client.send(b"a")
    client.send(b"!", socket.MSG_OOB)
    select.select([], [], [peer], 5)
    yield
    assert peer.recv(9) == b"a"
    assert peer.recv(1, socket.MSG_OOB) == b"!"


@facility
def socket_bound_to_a_device() -> Iterator[None]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(ANY, SO_BINDTODEVICE, b"lo\0")
    sock.bind((LOCALHOST, 0))
    yield
    assert sock.getsockopt(ANY, SO_BINDTODEVICE, 16).startswith(b"lo")


@facility
def socket_with_a_filter() -> Iterator[None]:
    """A filter that lets nothing pass."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOCALHOST, 0))
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    sock.setsockopt(ANY, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)))
    yield
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.sendto(b"x", sock.getsockname())
    assert not select.select([sock], [], [], 0.5)[0]


@facility
def multicast_membership() -> Iterator[None]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", 0))
    member = socket.inet_aton(MULTICAST) + socket.inet_aton(LOCALHOST)
    sock.setsockopt(IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.setsockopt(IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCALHOST))
    yield
    sock.sendto(b"x", (MULTICAST, sock.getsockname()[1]))
    assert select.select([sock], [], [], 2)[0], "the membership is gone"


@facility
def tcp_connection_that_nobody_has_accepted() -> Iterator[None]:
    server = socket.create_server((LOCALHOST, 0))
    client = socket.create_connection(server.getsockname())
    client.send(b"kept")
    yield
    server.settimeout(5)
    assert server.accept()[0].recv(9) == b"kept"


@facility
def tcp_socket_that_is_bound_alone() -> Iterator[None]:
    sock = socket.socket()
    sock.bind((LOCALHOST, 0))
    before = sock.getsockname()
    yield
    sock.listen()
    assert sock.getsockname() == before
    socket.create_connection(before).close()


@facility
def tcp_socket_without_a_connection() -> Iterator[None]:
    sock = socket.socket()
    sock.setsockopt(ANY, socket.SO_KEEPALIVE, 1)
    yield
    assert sock.getsockopt(ANY, socket.SO_KEEPALIVE) == 1


@facility
def tcp_connection_that_is_being_made() -> Iterator[None]:
    """To an address that answers nothing."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(("192.0.2.77", 9))
    yield
    assert sock.fileno() >= 0


@facility
def tcp_connection_whose_peer_has_reset_it() -> Iterator[None]:
    client, peer = connected()
    peer.setsockopt(ANY, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    select.select([client], [], [], 5)
    yield
    try:
        answer = client.recv(1)
    except ConnectionResetError:
        return
    raise AssertionError(f"the reset is gone: {answer!r}")


@facility
def tcp_connection_whose_peer_has_closed_it() -> Iterator[None]:
    client, peer = connected()
    peer.send(b"kept")
    peer.close()
    select.select([client], [], [], 5)
    yield
    client.settimeout(5)
    assert (client.recv(9), client.recv(9)) == (b"kept", b"")


@facility
def udp6_bound() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(2))
    first.bind(("::1", 0))
    yield
    second.sendto(b"x", first.getsockname())
    assert first.recv(9) == b"x"


@facility
def udp_data_that_is_corked() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    first.bind((LOCALHOST, 0))
    second.connect(first.getsockname())
    second.setsockopt(UDP, 1, 1)
    second.send(b"ke")
    yield
    second.send(b"pt")
    second.setsockopt(UDP, 1, 0)
    first.settimeout(2)
    assert first.recv(9) == b"kept"


@facility
def udp_lite_socket() -> Iterator[None]:
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136) for _ in range(2))
    first.bind((LOCALHOST, 0))
    yield
    second.sendto(b"x", first.getsockname())
    assert first.recv(9) == b"x"


@facility
def ping_socket() -> Iterator[None]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    sock.bind((LOCALHOST, 0))
    yield
    assert sock.fileno() >= 0


@facility
def netlink_socket_in_a_group() -> Iterator[None]:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.bind((0, 1))
    yield
    assert sock.getsockname()[1] == 1


@facility
def netlink_socket_with_unread_data() -> Iterator[None]:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.bind((0, 0))
    sock.send(struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))
    yield
    assert select.select([sock], [], [], 2)[0]


@facility
def netlink_socket_of_socket_diagnosis() -> Iterator[None]:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
    sock.bind((0, 0))
    yield
    assert sock.getsockname()


@facility
def unix_connection_that_nobody_has_accepted() -> Iterator[None]:
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind("/root/unaccepted")
    server.listen()
    client.connect("/root/unaccepted")
    client.send(b"kept")
    yield
    server.settimeout(5)
    assert server.accept()[0].recv(9) == b"kept"


@facility
def unix_socket_whose_name_is_removed() -> Iterator[None]:
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind("/root/socket-to-remove")
    server.listen()
    client.connect("/root/socket-to-remove")
    peer = server.accept()[0]
    os.unlink("/root/socket-to-remove")
    yield
    client.send(b"x")
    assert peer.recv(9) == b"x"


@facility
def unix_peer_identity() -> Iterator[None]:
    first, second = socket.socketpair()
    before = first.getsockopt(ANY, socket.SO_PEERCRED, 12)
    yield
    assert second.fileno() >= 0
    assert first.getsockopt(ANY, socket.SO_PEERCRED, 12) == before


@facility
def unix_credentials_in_the_queue() -> Iterator[None]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    second.setsockopt(ANY, socket.SO_PASSCRED, 1)
    first.send(b"x")
    yield
    assert second.getsockopt(ANY, socket.SO_PASSCRED) == 1
    data, [(_, _, credentials)], _, _ = second.recvmsg(9, 99)
    assert (data, struct.unpack("iii", credentials)) == (b"x", (os.getpid(), 0, 0))


@facility
def unix_urgent_data() -> Iterator[None]:
    first, second = socket.socketpair()
    first.send(b"a")
    first.send(b"!", socket.MSG_OOB)
    yield
    assert second.recv(1, socket.MSG_OOB) == b"!"
    assert second.recv(9) == b"a"


@facility
def unix_packets_to_a_listener() -> Iterator[None]:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind("\0packets")
    server.listen()
    yield
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect("\0packets")
    client.send(b"x")
    assert server.accept()[0].recv(9) == b"x"


@facility
def descriptor_in_flight_between_datagrams() -> Iterator[None]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    file = os.open("/root/in-flight", os.O_RDWR | os.O_CREAT)
    os.write(file, b"kept")
    rights = [(ANY, socket.SCM_RIGHTS, array.array("i", [file]))]
    first.sendmsg([b"x"], rights)
    os.close(file)
    yield
    _, [(_, _, data)], _, _ = second.recvmsg(9, 99)
    assert os.pread(struct.unpack("i", data[:4])[0], 9, 0) == b"kept"


@facility
def removed_file_in_flight() -> Iterator[None]:
    first, second = socket.socketpair()
    file = os.open("/root/removed-in-flight", os.O_RDWR | os.O_CREAT)
    os.write(file, b"kept")
    os.unlink("/root/removed-in-flight")
    first.sendmsg([b"x"], [(ANY, socket.SCM_RIGHTS, array.array("i", [file]))])
    os.close(file)
    yield
    _, [(_, _, data)], _, _ = second.recvmsg(9, 99)
    assert os.pread(struct.unpack("i", data[:4])[0], 9, 0) == b"kept"


@facility
def socket_in_flight_in_itself() -> Iterator[None]:
    first, second = socket.socketpair()
    rights = [(ANY, socket.SCM_RIGHTS, array.array("i", [second.fileno()]))]
    first.sendmsg([b"x"], rights)
    yield
    _, [(_, _, data)], _, _ = second.recvmsg(9, 99)
    assert os.fstat(struct.unpack("i", data[:4])[0]).st_ino == os.fstat(second.fileno()).st_ino


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@facility
def full_unix_socket_with_a_waiting_writer() -> Iterator[None]:
    first, second = socket.socketpair()
    child = os.fork()
    if child == 0:
        first.sendall(b"x" * (1 << 20))
        os._exit(0)
    # The writer sleeps when the socket is full.
    while _state_of(child) != "S":
        time.sleep(0.01)
    yield
    length = 0
    while length < 1 << 20:
        length += len(second.recv(1 << 20))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
