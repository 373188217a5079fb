"""Links, addresses and routes by messages to the kernel, and network namespaces with names.

What `ip` does, without starting it: a program's start costs several times what the kernel does for
it, and a box needs three of them whenever it starts or wakes. A `Kernel` speaks for the namespace
in which it was made; a thread that enters one must end, so it is never one of the loop's own
(`apart`). All but `apart` blocks.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from boxd.backends.boxlocks import ended
from boxd.errors import BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from ipaddress import IPv4Address, IPv4Interface

NAMES = Path("/run/netns")
"""Where network namespaces have names, as for `ip`."""
LOOPBACK = "lo"
TIMEOUT = 10.0
_OWN = Path("/proc/thread-self/ns/net")
_NEWNET = 0x40000000
_SHARED, _REC, _BIND, _DETACH = 1 << 20, 1 << 14, 1 << 12, 2
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
_IFNAME, _MTU, _LINKINFO, _AF_SPEC, _NETNS = 3, 4, 18, 26, 28
_KIND, _DATA, _PEER = 1, 2, 1
_ADDRGENMODE, _NONE = 8, 1
_GATEWAY = 5
_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class LinkFailed(BoxdError):
    """The kernel refused a step. `number` is its errno."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"the network of a box: {what} failed: {os.strerror(number)}")
        self.number = number


class Kernel:
    """One conversation with the kernel, about the network namespace in which it was begun."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.settimeout(TIMEOUT)
        self._socket.bind((0, 0))
        self._number = 0

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def add_pair(self, link: str, peer: str, namespace: int, *, mtu: int) -> None:
        """Makes two ends of a cable: `link` here, `peer` in the namespace of that descriptor."""
        size = _attribute(_MTU, struct.pack("=I", mtu))
        other = _attribute(_IFNAME, _text(peer)) + size
        other += _attribute(_NETNS, struct.pack("=I", namespace))
        data = _attribute(_PEER, _LINK.pack(0, 0, 0, 0, 0) + other)
        info = _attribute(_KIND, b"veth") + _attribute(_DATA, data)
        body = _attribute(_IFNAME, _text(link)) + size + _attribute(_LINKINFO, info)
        head = _LINK.pack(0, 0, 0, 0, 0)
        self._ask(f"making link {link}", _NEW_LINK, _CREATE | _EXCLUSIVE, head + body)

    def no_own_address(self, link: str) -> None:
        """The link gets no IPv6 address by itself."""
        six = _attribute(_ADDRGENMODE, struct.pack("=B", _NONE))
        spec = _attribute(_AF_SPEC, _attribute(socket.AF_INET6, six))
        head = _LINK.pack(0, 0, self.index(link), 0, 0)
        self._ask(f"setting up link {link}", _NEW_LINK, 0, head + spec)

    def switch(self, link: str, *, up: bool) -> None:
        """Lets packets pass, or none."""
        head = _LINK.pack(0, 0, self.index(link), _UP if up else 0, _UP)
        self._ask(f"switching link {link}", _NEW_LINK, 0, head)

    def remove_link(self, link: str) -> None:
        """Removes both ends. No error if it is not there."""
        head = _LINK.pack(0, 0, 0, 0, 0) + _attribute(_IFNAME, _text(link))
        with _unless(errno.ENODEV):
            self._ask(f"removing link {link}", _DELETE_LINK, 0, head)

    def add_address(self, link: str, address: IPv4Interface) -> None:
        """Gives a link an address. No error if it has it."""
        body = self._address(link, address)
        self._ask(f"giving {link} {address}", _NEW_ADDRESS, _CREATE | _REPLACE, body)

    def remove_address(self, link: str, address: IPv4Interface) -> None:
        """Takes an address away. No error if it is not there."""
        with _unless(errno.EADDRNOTAVAIL):
            self._ask(f"taking {address}", _DELETE_ADDRESS, 0, self._address(link, address))

    def set_neighbour(self, link: str, address: IPv4Address, hardware: bytes) -> None:
        """Who has an address on a link: nobody is asked for it, for ever."""
        head = _NEIGHBOUR.pack(socket.AF_INET, self.index(link), _PERMANENT, 0, 0)
        body = head + _attribute(1, address.packed) + _attribute(2, hardware)
        what = f"telling {link} who has {address}"
        self._ask(what, _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)

    def add_default_route(self, gateway: IPv4Address) -> None:
        """What is for nobody near goes to `gateway`."""
        head = _ROUTE.pack(socket.AF_INET, 0, 0, 0, _MAIN, _BOOT, _UNIVERSE, _UNICAST, 0)
        body = head + _attribute(_GATEWAY, gateway.packed)
        self._ask(f"routing to {gateway}", _NEW_ROUTE, _CREATE | _EXCLUSIVE, body)

    def index(self, link: str) -> int:
        """The number of a link. LinkFailed with ENODEV."""
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
    """A conversation about the namespace of this thread."""
    one = Kernel()
    try:
        yield one
    finally:
        one.close()


async def apart(work: Callable[[], _T]) -> _T:
    """Does blocking work in a thread of its own, which ends with it.

    When it is cancelled, it has ended before the cancellation goes on.
    """
    pool = ThreadPoolExecutor(1)
    try:
        return await ended(asyncio.get_running_loop().run_in_executor(pool, work))
    finally:
        pool.shutdown(wait=False)


def enter(name: str) -> None:
    """This thread sees a named namespace from now on."""
    try:
        descriptor = os.open(NAMES / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LinkFailed(f"opening namespace {name}", error.errno or errno.EIO) from error
    try:
        _check("entering a namespace", _libc.setns(descriptor, _NEWNET))
    finally:
        os.close(descriptor)


def leave() -> None:
    """This thread sees the namespace of the process again."""
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check("leaving a namespace", _libc.setns(descriptor, _NEWNET))
    finally:
        os.close(descriptor)


def open_own() -> int:
    """A descriptor of the namespace of this thread."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def make_namespace(name: str) -> None:
    """Makes a namespace with that name; this thread is in it then."""
    _check("making a namespace", _libc.unshare(_NEWNET))
    name_namespace(name, _OWN)


def name_namespace(name: str, origin: Path) -> None:
    """Gives a namespace a name, as which it lives on. FileExistsError is raised as LinkFailed."""
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
    """Takes its name; it ends with the last process in it. No error if it is not there."""
    place = NAMES / name
    if not place.exists():
        return
    if _libc.umount2(os.fsencode(place), _DETACH) != 0 and ctypes.get_errno() != errno.EINVAL:
        raise LinkFailed(f"removing namespace {name}", ctypes.get_errno())
    place.unlink(missing_ok=True)


def _share_names() -> None:
    """A name that is removed is removed in every mount namespace, and so lets go of what it had."""
    NAMES.mkdir(mode=0o755, exist_ok=True)
    try:
        _mount(None, NAMES, _SHARED | _REC)
    except LinkFailed as error:
        if error.number != errno.EINVAL:
            raise
        _mount(NAMES, NAMES, _BIND | _REC)
        _mount(None, NAMES, _SHARED | _REC)


def _mount(source: Path | None, target: Path, flags: int) -> None:
    origin = b"" if source is None else os.fsencode(source)
    arguments = (origin, os.fsencode(target), b"none", ctypes.c_ulong(flags), None)
    _check(f"mounting {target}", _libc.mount(*arguments))


def _check(what: str, status: int) -> None:
    if status != 0:
        raise LinkFailed(what, ctypes.get_errno())


@contextmanager
def _unless(number: int) -> Iterator[None]:
    """One error means that there was nothing to do."""
    try:
        yield
    except LinkFailed as error:
        if error.number != number:
            raise


def _text(name: str) -> bytes:
    return name.encode() + b"\0"


def _attribute(kind: int, value: bytes) -> bytes:
    size = struct.calcsize("=HH") + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)
