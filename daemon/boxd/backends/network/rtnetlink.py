"""Manages links, addresses, routes and named network namespaces by netlink messages.

This module replaces the program `ip`, whose start costs several times the kernel's own work. A box
would need three starts of `ip` for each start or resume. A `Kernel` works in the network namespace
in which it was created. A thread that enters a namespace must end afterwards, so it is never one of
the event loop's threads (`apart`). All functions except `apart` block.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from boxd.backends.host.run import ENVIRONMENT
from boxd.cancellation import ended
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from ipaddress import IPv4Address, IPv4Interface

NAMES = Path("/run/netns")
"""Directory of named network namespaces, shared with `ip`."""
LOOPBACK = "lo"
TIMEOUT = 10.0
_OWN = Path("/proc/thread-self/ns/net")
_NEWNET = 0x40000000
_SHARED, _PRIVATE, _REC, _BIND, _DETACH = 1 << 20, 1 << 18, 1 << 14, 1 << 12, 2
_ANSWER_SIZE = 1 << 16
_REQUEST, _ACKNOWLEDGE, _REPLACE, _EXCLUSIVE, _CREATE = 1, 4, 0x100, 0x200, 0x400
_NEW_LINK, _DELETE_LINK, _GET_LINK = 16, 17, 18
_NEW_ADDRESS, _DELETE_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR = 20, 21, 24, 28
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_PERMANENT = 0x80
_ROUTE = struct.Struct("=BBBBBBBBI")
_UP = 1
_MAIN, _BOOT, _UNIVERSE, _UNICAST = 254, 3, 0, 1
_HARDWARE, _IFNAME, _MTU, _LINKINFO, _AF_SPEC, _NETNS = 1, 3, 4, 18, 26, 28
_KIND, _DATA, _PEER = 1, 2, 1
_ADDRGENMODE, _NONE = 8, 1
_GATEWAY = 5
_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class LinkFailed(BoxdError):
    """The kernel rejected a request. `number` is its errno."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"the network of a box: {what} failed: {os.strerror(number)}")
        self.number = number


class Kernel:
    """A netlink socket for the network namespace in which it was created."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.settimeout(TIMEOUT)
        self._socket.bind((0, 0))
        self._number = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def add_pair(self, link: str, peer: str, namespace: int, *, mtu: int) -> None:
        """Create a veth pair: `link` here, `peer` in the namespace of a descriptor.

        `link` gets a chosen hardware address: soon after the creation, udev replaces an address
        that the kernel has chosen (`MACAddressPolicy`), and boxes know the first one only.
        """
        size = _attribute(_MTU, struct.pack("=I", mtu))
        other = _attribute(_IFNAME, _text(peer)) + size
        other += _attribute(_NETNS, struct.pack("=I", namespace))
        data = _attribute(_PEER, _LINK.pack(0, 0, 0, 0, 0) + other)
        info = _attribute(_KIND, b"veth") + _attribute(_DATA, data)
        body = _attribute(_IFNAME, _text(link)) + _attribute(_HARDWARE, _local_address())
        body += size + _attribute(_LINKINFO, info)
        head = _LINK.pack(0, 0, 0, 0, 0)
        self._ask(f"creating link {link}", _NEW_LINK, _CREATE | _EXCLUSIVE, head + body)

    def no_own_address(self, link: str) -> None:
        """Disable automatic IPv6 addresses on a link."""
        six = _attribute(_ADDRGENMODE, struct.pack("=B", _NONE))
        spec = _attribute(_AF_SPEC, _attribute(socket.AF_INET6, six))
        head = _LINK.pack(0, 0, self.index(link), 0, 0)
        self._ask(f"disabling automatic IPv6 addresses of link {link}", _NEW_LINK, 0, head + spec)

    def switch(self, link: str, *, up: bool) -> None:
        """Set a link up or down."""
        head = _LINK.pack(0, 0, self.index(link), _UP if up else 0, _UP)
        self._ask(f"setting link {link} {'up' if up else 'down'}", _NEW_LINK, 0, head)

    def remove_link(self, link: str) -> None:
        """Remove both ends of a pair. No error if it does not exist."""
        head = _LINK.pack(0, 0, 0, 0, 0) + _attribute(_IFNAME, _text(link))
        with _unless(errno.ENODEV):
            self._ask(f"removing link {link}", _DELETE_LINK, 0, head)

    def add_address(self, link: str, address: IPv4Interface) -> None:
        """Add an address to a link. No error if the link has it."""
        body = self._address(link, address)
        self._ask(f"adding {address} to {link}", _NEW_ADDRESS, _CREATE | _REPLACE, body)

    def remove_address(self, link: str, address: IPv4Interface) -> None:
        """Remove an address from a link. No error if the link does not have it."""
        with _unless(errno.EADDRNOTAVAIL):
            self._ask(f"removing {address}", _DELETE_ADDRESS, 0, self._address(link, address))

    def set_neighbour(self, link: str, address: IPv4Address, hardware: bytes) -> None:
        """Add a permanent ARP entry, so that the kernel sends no ARP requests for the address."""
        head = _NEIGHBOUR.pack(socket.AF_INET, self.index(link), _PERMANENT, 0, 0)
        body = head + _attribute(1, address.packed) + _attribute(2, hardware)
        what = f"adding an ARP entry for {address} to {link}"
        self._ask(what, _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)

    def add_default_route(self, gateway: IPv4Address) -> None:
        """Add a default route via `gateway`."""
        head = _ROUTE.pack(socket.AF_INET, 0, 0, 0, _MAIN, _BOOT, _UNIVERSE, _UNICAST, 0)
        body = head + _attribute(_GATEWAY, gateway.packed)
        self._ask(f"adding a route via {gateway}", _NEW_ROUTE, _CREATE | _EXCLUSIVE, body)

    def index(self, link: str) -> int:
        """Return the index of a link. Raises LinkFailed with ENODEV if there is none."""
        body = _LINK.pack(0, 0, 0, 0, 0) + _attribute(_IFNAME, _text(link))
        answer = self._ask(f"finding link {link}", _GET_LINK, 0, body, acknowledge=False)
        return int(_LINK.unpack_from(answer, _HEADER.size)[2])

    def _address(self, link: str, address: IPv4Interface) -> bytes:
        length = address.network.prefixlen
        head = _ADDRESS.pack(socket.AF_INET, length, 0, 0, self.index(link))
        return head + b"".join(_attribute(kind, address.ip.packed) for kind in (1, 2))

    def _ask(
        self, what: str, kind: int, flags: int, body: bytes, *, acknowledge: bool = True
    ) -> bytes:
        self._number += 1
        flags |= _REQUEST | (_ACKNOWLEDGE if acknowledge else 0)
        head = _HEADER.pack(_HEADER.size + len(body), kind, flags, self._number, 0)
        try:
            self._socket.send(head + body)
            answer = b""
            while len(answer) < _HEADER.size or _HEADER.unpack_from(answer)[3] != self._number:
                answer = self._socket.recv(_ANSWER_SIZE)
        except OSError as error:
            raise LinkFailed(what, error.errno or errno.ETIMEDOUT) from error
        if _HEADER.unpack_from(answer)[1] == _ERROR:
            (status,) = struct.unpack_from("=i", answer, _HEADER.size)
            if status != 0:
                raise LinkFailed(what, -status)
        return answer


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Open a netlink socket for the namespace of this thread."""
    connection = Kernel()
    try:
        yield connection
    finally:
        connection.close()


async def apart(work: Callable[[], _T]) -> _T:
    """Run blocking work in a new thread, which ends with it.

    If the caller is cancelled, the work ends before the cancellation continues.
    """
    pool = ThreadPoolExecutor(1)
    try:
        return await ended(asyncio.get_running_loop().run_in_executor(pool, work))
    finally:
        pool.shutdown(wait=False)


def enter(name: str) -> None:
    """Move this thread into a named network namespace."""
    try:
        descriptor = os.open(NAMES / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LinkFailed(f"opening namespace {name}", error.errno or errno.EIO) from error
    try:
        _check("entering a namespace", _libc.setns(descriptor, _NEWNET))
    finally:
        os.close(descriptor)


def leave() -> None:
    """Move this thread back to the network namespace of the process."""
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check("leaving a namespace", _libc.setns(descriptor, _NEWNET))
    finally:
        os.close(descriptor)


def open_own() -> int:
    """Return a descriptor of this thread's network namespace."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def make_namespace(name: str) -> None:
    """Create a named network namespace and move this thread into it."""
    _check("creating a namespace", _libc.unshare(_NEWNET))
    name_namespace(name, _OWN)


def name_namespace(name: str, origin: Path) -> None:
    """Give a namespace a name, which keeps it alive.

    Raises LinkFailed, for example if the name exists.
    """
    _share_names()
    place = NAMES / name
    try:
        os.close(os.open(place, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    except OSError as error:
        raise LinkFailed(f"naming namespace {name}", error.errno or errno.EIO) from error
    try:
        _mount(origin, place, _BIND)
    except LinkFailed:
        place.unlink()
        raise


def remove_namespace(name: str) -> None:
    """Remove a namespace's name; it ends with its last process. No error if there is none."""
    place = NAMES / name
    if not place.exists():
        return
    if _libc.umount2(os.fsencode(place), _DETACH) != 0 and ctypes.get_errno() != errno.EINVAL:
        raise LinkFailed(f"removing namespace {name}", ctypes.get_errno())
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.EBUSY or not _remove_hidden(place):
            raise LinkFailed(f"removing namespace {name}", error.errno or errno.EIO) from error


def _remove_hidden(place: Path) -> bool:
    """Remove a name with a second mount below the mount of NAMES. Return whether it is gone.

    `ip` lets NAMES follow a shared /run, so each name is mounted twice. After `mount --make-private
    NAMES`, the second mount stays, out of reach, and the file cannot be removed. It can be removed
    from another mount namespace, where nothing is mounted on it.
    """
    script = 'umount -l "$1"; umount "$2"; rm "$2"'
    alone = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh")
    subprocess.run([*alone, NAMES, place], env=ENVIRONMENT, capture_output=True, check=False)
    return not place.exists()


def _share_names() -> None:
    """Make NAMES a shared mount: the removal of a name then frees it in every mount namespace."""
    NAMES.mkdir(mode=0o755, exist_ok=True)
    try:
        _mount(None, NAMES, _SHARED | _REC)
    except LinkFailed as error:
        if error.number != errno.EINVAL:
            raise
        _mount(NAMES, NAMES, _BIND | _REC)
        _mount(None, NAMES, _PRIVATE | _REC)  # else names would also be mounted in a shared /run
        _mount(None, NAMES, _SHARED | _REC)


def _mount(source: Path | None, target: Path, flags: int) -> None:
    origin = b"" if source is None else os.fsencode(source)
    target_name, kind = os.fsencode(target), b"none"
    status = _libc.mount(origin, target_name, kind, ctypes.c_ulong(flags), None)
    _check(f"mounting {target}", status)


def _check(what: str, status: int) -> None:
    if status != 0:
        raise LinkFailed(what, ctypes.get_errno())


@contextmanager
def _unless(number: int) -> Iterator[None]:
    """Ignore one error, which means that there was nothing to do."""
    try:
        yield
    except LinkFailed as error:
        if error.number != number:
            raise


def _local_address() -> bytes:
    """Return a random hardware address: for one station, and of local administration."""
    first, *others = os.urandom(6)
    return bytes([first & 0xFE | 2, *others])


def _text(name: str) -> bytes:
    return name.encode() + b"\0"


def _attribute(kind: int, value: bytes) -> bytes:
    size = struct.calcsize("=HH") + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)
