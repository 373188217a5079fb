"""The program that runc starts as `criu`: restores a box, but lets nothing run before a check.

The service runs it as a plain script with Python's `-I -S`, so it imports only the standard
library. The program turns into CRIU at once. A second process, the relay, stays between runc and
CRIU and forwards their messages. CRIU reports `post-restore` when all mounts and processes of the
box exist and no process has run. The relay then asks the service (`restore_gate`) for permission.
With permission, the relay creates the mark of the memory image, and then forwards the report.
Without permission the relay ends: CRIU loses its client, kills all processes of the box and fails.

The relay does not need the service after the permission, so a restore survives the service's death.
"""

from __future__ import annotations

import _socket  # importing `socket` takes 5 ms, and runc starts this program twice per restore
import os
import select
import sys

PERMISSION = b"go"
CONNECT, CHECK = "connect", "check"
"""Requests to the service: to connect the network namespace of a process, and to check a box."""
MOST = 256 * 1024
"""Maximum size of a message between runc and CRIU, in bytes; *measured*: 5,000 for a restore."""
NAMESPACES = b"setup-namespaces"
"""The report that the namespaces of the first process exist, but nothing else."""
EARLY = frozenset({b"pre-restore", NAMESPACES, b"post-setup-namespaces"})
"""Reports before the processes exist. All other reports of CRIU need the permission."""
_FEATURES, _VERSION = 9, 10
"""Types of requests that do not restore anything."""
_TYPE, _SUCCESS, _NOTIFY, _KEEP_OPEN, _NUMBERS = 1, 2, 5, 4, 10
_SCRIPT, _PID = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(Exception):
    """A message is not a protobuf message, or is too long."""


def fields(message: bytes) -> dict[int, int | bytes]:
    """Return the last value of each field of a protobuf message."""
    values: dict[int, int | bytes] = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            values[number], position = _varint(message, position)
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Malformed
        values[number] = message[position : position + size]
        position += size
        if position > len(message):
            raise Malformed
    return values


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode a varint. Return its value and the position after it."""
    number = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise Malformed


def is_question(request: bytes) -> bool:
    """Return whether a request of runc restores nothing and is the only one of its connection."""
    values = fields(request)
    return values.get(_TYPE) in (_FEATURES, _VERSION) and not values.get(_KEEP_OPEN)


def version(major: int, minor: int) -> bytes:
    """Encode CRIU's answer to a version request; both numbers must be below 128."""
    numbers = bytes([1 << 3, major, 2 << 3, minor])
    head = bytes([_TYPE << 3, _VERSION, _SUCCESS << 3, True])
    return head + bytes([_NUMBERS << 3 | _BYTES, len(numbers)]) + numbers


def needs_permission(response: bytes) -> int | None:
    """Return the pid in a report after which processes may run, or 0 if the report has no pid.

    None: the report comes before that moment, or reports that the restore has failed.
    """
    values = fields(response)
    if not values.get(_SUCCESS):
        return None
    report = values.get(_NOTIFY)
    details = fields(report) if isinstance(report, bytes) else {}
    if details.get(_SCRIPT) in EARLY:
        return None
    pid = details.get(_PID)
    return pid if isinstance(pid, int) else 0


def new_namespaces(response: bytes) -> int | None:
    """Return the pid in a report of new namespaces; None for other messages."""
    values = fields(response)
    report = values.get(_NOTIFY)
    details = fields(report) if isinstance(report, bytes) else {}
    pid = details.get(_PID)
    return pid if details.get(_SCRIPT) == NAMESPACES and isinstance(pid, int) else None


def relay(runc: int, criu: int, gate: str, mark: str) -> None:
    """Forward messages between two sockets until CRIU closes its end or permission is denied."""
    permitted = False
    sources = [runc, criu]
    while criu in sources:
        for source in select.select(sources, [], [])[0]:
            message = os.read(source, MOST)
            if len(message) == MOST:
                raise Malformed
            if not message:
                sources.remove(source)
                if source == runc:
                    _end_output(criu)
                continue
            if source == criu and not permitted:
                new = new_namespaces(message)
                if new is not None and not _has_permission(gate, CONNECT, new):
                    return
            pid = None if permitted or source == runc else needs_permission(message)
            if pid is not None:
                if not _has_permission(gate, CHECK, pid):
                    return
                _create(mark)
                permitted = True
            os.write(criu if source == runc else runc, message)


def _end_output(descriptor: int) -> None:
    copy = _socket.socket(fileno=os.dup(descriptor))
    copy.shutdown(_socket.SHUT_WR)
    copy.close()


def _has_permission(gate: str, what: str, pid: int) -> bool:
    """Ask the service. Return False if it refuses, is dead or dies meanwhile."""
    # The path of a socket is limited to 107 bytes.
    directory = os.open(os.path.dirname(gate), os.O_PATH | os.O_DIRECTORY)
    service = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        service.connect(f"/proc/self/fd/{directory}/{os.path.basename(gate)}")
        service.sendall(f"{what} {pid}\n".encode())
        return service.recv(len(PERMISSION)) == PERMISSION
    except OSError:
        return False
    finally:
        service.close()
        os.close(directory)


def _create(mark: str) -> None:
    """Create an empty file and sync it to the disk."""
    for path, flags in (
        (mark, os.O_WRONLY | os.O_CREAT),
        (os.path.dirname(mark), os.O_RDONLY | os.O_DIRECTORY),
    ):
        descriptor = os.open(path, flags, 0o600)
        os.fsync(descriptor)
        os.close(descriptor)


def _leave(cgroups: list[str]) -> None:
    """Join cgroups outside the box, so that the box's limits and freezer do not apply to the relay.

    A cgroup that cannot be joined is skipped. *Measured*: 0.3 ms for ten hierarchies.
    """
    for path in cgroups:
        try:
            descriptor = os.open(path, os.O_WRONLY)
        except OSError:
            continue
        try:
            os.write(descriptor, b"0")
        except OSError:
            continue
        finally:
            os.close(descriptor)


def interpose(number: int, gate: str, mark: str, cgroups: list[str]) -> None:
    """Put the relay between runc and CRIU, unless runc only asks a question."""
    runc = _socket.socket(fileno=number)
    request = runc.recv(MOST, _socket.MSG_PEEK)
    runc.detach()
    if is_question(request):
        return
    ours, criu = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        # A grandchild: CRIU takes any child that ends for a process of the box.
        try:
            if os.fork() == 0:
                criu.close()
                _leave(cgroups)
                relay(number, ours.fileno(), gate, mark)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.dup2(criu.fileno(), number)


def main(words: list[str]) -> None:
    """Become CRIU, with the relay in front of it if runc needs one.

    `words` are the paths of CRIU, gate, mark and cgroup files, then runc's own arguments.
    """
    criu, gate, mark, cgroups, *arguments = words
    if arguments[:1] == ["swrk"]:
        interpose(int(arguments[1]), gate, mark, cgroups.splitlines())
    os.execv(criu, [criu, *arguments])  # runc must find CRIU under this pid


if __name__ == "__main__":
    main(sys.argv[1:])
