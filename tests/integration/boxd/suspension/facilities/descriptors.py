"""Descriptors of things that are removed, renamed, special or half read, and of terminals."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.boxd.suspension.facilities.program import call, facility, libc

if TYPE_CHECKING:
    from collections.abc import Iterator


@facility
def directory_that_is_half_read() -> Iterator[None]:
    names = {f"name-{number}" for number in range(200)}
    os.mkdir("/root/half-read")
    for name in names:
        Path("/root/half-read", name).touch()
    descriptor = os.open("/root/half-read", os.O_RDONLY | os.O_DIRECTORY)
    before = _entries(descriptor)
    yield
    after: list[str] = []
    while more := _entries(descriptor):
        after += more
    assert sorted(name for name in before + after if "." not in name) == sorted(names)


def _entries(directory: int) -> list[str]:
    buffer = ctypes.create_string_buffer(2048)
    length = call(libc.syscall(217, directory, buffer, 2048))
    names, place = [], 0
    while place < length:
        size = struct.unpack_from("H", buffer, place + 16)[0]
        names.append(buffer.raw[place + 19 : place + size].split(b"\0")[0].decode())
        place += size
    return names


@facility
def removed_directory() -> Iterator[None]:
    os.mkdir("/root/removed")
    descriptor = os.open("/root/removed", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir("/root/removed")
    yield
    assert os.fstat(descriptor).st_nlink == 0


@facility
def removed_pipe_with_data() -> Iterator[None]:
    os.mkfifo("/root/removed-fifo")
    descriptor = os.open("/root/removed-fifo", os.O_RDWR)
    os.write(descriptor, b"kept")
    os.unlink("/root/removed-fifo")
    yield
    assert os.read(descriptor, 9) == b"kept"


@facility
def removed_name_of_a_file_with_another_one() -> Iterator[None]:
    Path("/root/one").write_text("kept")
    os.link("/root/one", "/root/other")
    descriptor = os.open("/root/one", os.O_RDWR)
    os.unlink("/root/one")
    yield
    assert os.fstat(descriptor).st_ino == os.stat("/root/other").st_ino
    assert not list(Path("/root").glob("link_remap*"))


@facility
def replaced_file() -> Iterator[None]:
    """The name belongs to another file now."""
    Path("/root/replaced").write_text("old")
    descriptor = os.open("/root/replaced", os.O_RDONLY)
    Path("/root/replacement").write_text("new")
    os.rename("/root/replacement", "/root/replaced")
    yield
    assert os.pread(descriptor, 3, 0) == b"old"
    assert Path("/root/replaced").read_text() == "new"


@facility
def renamed_file() -> Iterator[None]:
    descriptor = os.open("/root/first-name", os.O_RDWR | os.O_CREAT)
    os.rename("/root/first-name", "/root/second-name")
    yield
    assert os.readlink(f"/proc/self/fd/{descriptor}") == "/root/second-name"


@facility
def removed_program_that_runs() -> Iterator[None]:
    shutil.copy("/bin/sleep", "/root/program-to-remove")
    with subprocess.Popen(["/root/program-to-remove", "3600"]) as child:
        while "program-to-remove" not in os.readlink(f"/proc/{child.pid}/exe"):
            time.sleep(0.01)
        os.unlink("/root/program-to-remove")
        yield
        assert child.poll() is None
        child.kill()


@facility
def removed_file_of_the_image() -> Iterator[None]:
    before = Path("/etc/debian_version").read_bytes()
    descriptor = os.open("/etc/debian_version", os.O_RDONLY)
    os.unlink("/etc/debian_version")
    yield
    assert os.pread(descriptor, 99, 0) == before


@facility
def replaced_program_of_the_image() -> Iterator[None]:
    """As an upgrade does it."""
    with subprocess.Popen(["/usr/bin/yes"], stdout=subprocess.PIPE) as child:
        while not os.readlink(f"/proc/{child.pid}/exe").endswith("/yes"):
            time.sleep(0.01)
        shutil.copy("/usr/bin/yes", "/usr/bin/yes.new")
        os.rename("/usr/bin/yes.new", "/usr/bin/yes")
        yield
        assert child.stdout is not None
        for _ in range(100):
            assert len(os.read(child.stdout.fileno(), 4096)) > 0
        child.kill()


@facility
def replaced_library_of_the_image() -> Iterator[None]:
    library = Path("/usr/lib/x86_64-linux-gnu/libutil.so.1")
    loaded = ctypes.CDLL(str(library))
    shutil.copy(library, f"{library}.new")
    os.rename(f"{library}.new", library)
    yield
    assert loaded._handle


@facility
def mapping_of_a_removed_file() -> Iterator[None]:
    descriptor = os.open("/root/mapped-and-removed", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"kept".ljust(4096))
    memory = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    os.unlink("/root/mapped-and-removed")
    yield
    assert memory[:4] == b"kept"


@facility
def removed_file_with_a_hole() -> Iterator[None]:
    descriptor = os.open("/root/sparse", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"kept", 32 << 20)
    os.unlink("/root/sparse")
    yield
    assert os.pread(descriptor, 4, 32 << 20) == b"kept"
    assert os.fstat(descriptor).st_blocks < 1024


@facility
def removed_file_of_shared_memory() -> Iterator[None]:
    descriptor = os.open("/dev/shm/removed", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"kept")
    os.unlink("/dev/shm/removed")
    yield
    assert os.pread(descriptor, 4, 0) == b"kept"


@facility
def symbolic_link_itself() -> Iterator[None]:
    os.symlink("/etc/hostname", "/root/link")
    descriptor = os.open("/root/link", os.O_PATH | os.O_NOFOLLOW)
    yield
    assert os.readlink(f"/proc/self/fd/{descriptor}") == "/root/link"


@facility
def devices() -> Iterator[None]:
    places = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
    descriptors = [os.open(place, os.O_RDWR) for place in places]
    yield
    assert len(os.read(descriptors[4], 4)) == 4
    assert os.read(descriptors[1], 4) == bytes(4)


@facility
def files_of_the_kernel() -> Iterator[None]:
    places = ("/proc/self/status", "/proc/meminfo", "/sys/kernel/mm/transparent_hugepage/enabled")
    descriptors = [os.open(place, os.O_RDONLY) for place in places if Path(place).exists()]
    yield
    for descriptor in descriptors:
        assert os.pread(descriptor, 4, 0)


@facility
def file_of_a_process_that_is_gone() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    descriptor = os.open(f"/proc/{child}/status", os.O_RDONLY)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    yield
    assert os.fstat(descriptor)


@facility
def process_descriptor_of_a_zombie() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        os._exit(4)
    descriptor = os.pidfd_open(child)
    select.select([descriptor], [], [])
    yield
    assert select.select([descriptor], [], [], 5)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


@facility
def process_descriptor_of_a_process_that_is_gone() -> Iterator[None]:
    child = os.fork()
    if child == 0:
        os._exit(4)
    descriptor = os.pidfd_open(child)
    os.waitpid(child, 0)
    yield
    assert select.select([descriptor], [], [], 5)[0]


@facility
def waiter_for_a_lock() -> Iterator[None]:
    descriptor = os.open("/root/waited-for", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    child = os.fork()
    if child == 0:
        other = os.open("/root/waited-for", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        os._exit(6)
    yield
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


@facility
def full_pipe_with_a_waiting_writer() -> Iterator[None]:
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, 1032)
    child = os.fork()
    if child == 0:
        left = 2 * size
        while left:
            left -= os.write(writing, b"x" * left)
        os._exit(0)
    yield
    length = 0
    while length < 2 * size:
        length += len(os.read(reading, size))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@facility
def pipe_with_pages_that_were_given() -> Iterator[None]:
    """By vmsplice with SPLICE_F_GIFT."""
    memory = mmap.mmap(-1, 4096)
    memory[:4] = b"kept"
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    reading, writing = os.pipe()
    call(libc.vmsplice(writing, struct.pack("QQ", place, 4096), 1, 8))
    yield
    assert os.read(reading, 4) == b"kept"


@facility
def pipe_with_pages_of_a_file() -> Iterator[None]:
    """By splice."""
    descriptor = os.open("/root/spliced", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"kept", 0)
    reading, writing = os.pipe()
    assert os.splice(descriptor, writing, 4) == 4
    yield
    assert os.read(reading, 4) == b"kept"


@facility
def terminal_with_input_and_output() -> Iterator[None]:
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[3] &= ~(termios.ECHO | termios.ICANON)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    os.write(master, b"typed")
    os.write(slave, b"shown")
    yield
    assert select.select([master], [], [], 2)[0], "the output is gone"
    assert os.read(master, 9) == b"shown"
    assert select.select([slave], [], [], 2)[0], "the input is gone"
    assert os.read(slave, 9) == b"typed"


@facility
def terminal_with_half_a_line_of_input() -> Iterator[None]:
    master, slave = pty.openpty()
    os.write(master, b"half ")
    yield
    os.write(master, b"a line\n")
    assert select.select([slave], [], [], 2)[0]
    assert (line := os.read(slave, 99)) == b"half a line\n", line


@facility
def terminal_whose_other_end_is_closed() -> Iterator[None]:
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    os.close(slave)
    yield
    slave = os.open(name, os.O_RDWR | os.O_NOCTTY)
    os.write(slave, b"x")
    assert os.read(master, 9) == b"x"


@facility
def terminal_in_packet_mode() -> Iterator[None]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    yield
    os.write(slave, b"x")
    assert os.read(master, 9) == b"\0x"


@facility
def terminal_for_one_process_alone() -> Iterator[None]:
    """TIOCEXCL."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCEXCL)
    yield
    flag = ctypes.c_int()
    fcntl.ioctl(slave, 0x80045440, flag)
    assert flag.value == 1
    assert master >= 0


@facility
def foreground_process_group() -> Iterator[None]:
    child, master = pty.fork()
    if child == 0:
        worker = os.fork()
        if worker == 0:
            time.sleep(3600)
        os.setpgid(worker, worker)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, worker)
        time.sleep(3600)
    foreground = 0
    while foreground in (0, child):
        foreground = os.tcgetpgrp(master)
        time.sleep(0.01)
    yield
    assert os.tcgetpgrp(master) == foreground


@facility
def terminal_itself_by_its_name() -> Iterator[None]:
    """A process has /dev/tty open."""
    child, master = pty.fork()
    if child == 0:
        os.open("/dev/tty", os.O_RDWR)
        Path("/root/has-a-terminal").touch()
        time.sleep(3600)
    while not Path("/root/has-a-terminal").exists():
        time.sleep(0.01)
    yield
    assert master >= 0


@facility
def secret_memory_file() -> Iterator[None]:
    """By memfd_secret."""
    descriptor = call(libc.syscall(447, 0))
    os.ftruncate(descriptor, 4096)
    memory = mmap.mmap(descriptor, 4096)
    memory[:4] = b"kept"
    yield
    assert memory[:4] == b"kept"


@facility
def memory_file_of_huge_pages() -> Iterator[None]:
    descriptor = os.memfd_create("huge", os.MFD_HUGETLB)
    os.ftruncate(descriptor, 2 << 20)
    memory = mmap.mmap(descriptor, 2 << 20)
    memory[:4] = b"kept"
    yield
    assert memory[:4] == b"kept"


@facility
def owner_of_a_descriptor_that_is_a_group() -> Iterator[None]:
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, -os.getpgrp())
    yield
    assert theirs.fileno() >= 0
    assert struct.unpack("ii", fcntl.fcntl(ours, 16, bytes(8))) == (2, os.getpgrp())
