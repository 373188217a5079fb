"""Attempts to escape from a box. The script runs as root and needs only the standard library.

It prints one JSON object with the name of each attempt, and `refused: WHY` or `SUCCEEDED`. Attempts
are functions named `try_*`. An attempt that returns has succeeded; one that raises OSError was
refused.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "unshare": 272,
    "setns": 308,
    "clone": 56,
    "clone3": 435,
    "mknod": 133,
    "ptrace": 101,
    "userfaultfd": 323,
    "bpf": 321,
    "perf_event_open": 298,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "clock_settime": 227,
    "settimeofday": 164,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "open_by_handle_at": 304,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "swapon": 167,
    "reboot": 169,
    "sethostname": 170,
    "iopl": 172,
    "ioperm": 173,
    "quotactl": 179,
    "acct": 163,
    "syslog": 103,
    "vhangup": 153,
    "fanotify_init": 300,
    "lookup_dcookie": 212,
    "kcmp": 312,
    "personality": 135,
}
_NAMESPACE_FLAGS = {
    "mnt": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_SIGCHLD = 17
_FAILED = 255
"""Exit status of an attempt with an error that is no answer of the kernel."""


def call(name: str, *arguments: object) -> int:
    """Make a system call by name. Raises OSError if the kernel refuses it."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in padded]
    result = int(_libc.syscall(ctypes.c_long(_NUMBERS[name]), *values))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def refused_by_filter(name: str, *arguments: object) -> None:
    """Make a call that the filter or a missing capability must refuse.

    EINVAL or EFAULT would mean that the kernel read the arguments, so the call itself was allowed.
    ENOSPC is the answer to namespaces beyond a limit.
    """
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC):
            raise
        return


def write(path: str, text: str) -> None:
    """Write to an existing file."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def try_mount_proc() -> None:
    call("mount", b"proc", b"/mnt", b"proc", 0, 0)


def try_mount_bind() -> None:
    call("mount", b"/", b"/mnt", b"none", 4096, 0)


def try_remount_root() -> None:
    call("mount", b"none", b"/proc/sys", b"none", 32, 0)


def try_umount_mask() -> None:
    call("umount2", b"/proc/kcore", 2)


def try_pivot_root() -> None:
    refused_by_filter("pivot_root", b"/mnt", b"/mnt")


def try_new_mount_api() -> None:
    refused_by_filter("fsopen", b"tmpfs", 0)


def try_open_tree() -> None:
    refused_by_filter("open_tree", -100, b"/", 1)


def try_move_mount() -> None:
    refused_by_filter("move_mount", -100, b"/", -100, b"/mnt", 0)


def try_mount_setattr() -> None:
    refused_by_filter("mount_setattr", -100, b"/", 0, 0, 32)


def try_mknod_disk() -> None:
    os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0))


def try_mknod_memory() -> None:
    os.mknod("/dev/mem2", 0o20600, os.makedev(1, 1))


def try_host_devices() -> None:
    names = ["mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "loop0"]
    names += ["loop-control", "net/tun", "mapper/control", "console", "vsock"]
    found = [name for name in names if Path("/dev", name).exists()]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no such devices")
    for name in found:
        os.close(os.open(f"/dev/{name}", os.O_RDWR))


def try_ptrace_outside() -> None:
    """Attach to every pid outside of the box; each attempt must fail."""
    own = {int(name) for name in os.listdir("/proc") if name.isdigit()} | {os.getpid()}
    for pid in set(range(1, 5000)) - own:
        try:
            call("ptrace", 16, pid)  # PTRACE_ATTACH
        except ProcessLookupError:
            continue
        return
    raise ProcessLookupError(errno.ESRCH, "no process outside the box answers")


def try_parent_pid_namespace() -> None:
    visible = [p for p in os.listdir("/proc") if p.isdigit()]
    if len(visible) > 64:
        return  # The listing shows the processes of the host.
    raise ProcessLookupError(errno.ESRCH, "only the box's processes are visible")


def try_root_of_init() -> None:
    """Look above the root of init: it is the box's own root, and there is no directory above it."""
    own = os.stat("/")
    for path in ("/proc/1/root/", "/proc/1/root/../..", "/proc/self/root/.."):
        other = os.stat(path)
        if (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino):
            return
    raise PermissionError(errno.EPERM, "it is the box's own root")


def try_enter_namespaces() -> None:
    for name in ("mnt", "net", "pid", "ipc", "uts", "cgroup"):
        handle = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        try:
            call("setns", handle, 0)
        finally:
            os.close(handle)


def try_release_agent() -> None:
    found = list(Path("/sys/fs/cgroup").glob("**/release_agent"))
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no release_agent")
    write(str(found[0]), "/tmp/evil")


def try_cgroup_limits() -> None:
    names = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")
    for name in names:
        for path in Path("/sys/fs/cgroup").glob(f"**/{name}"):
            write(str(path), "-1")
            return
    raise FileNotFoundError(errno.ENOENT, "no limits")


def try_leave_cgroup() -> None:
    for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs"):
        write(str(path), "0")
        return
    raise FileNotFoundError(errno.ENOENT, "no cgroups")


def try_make_cgroup() -> None:
    for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs"):
        (path.parent / "evil").mkdir()
        return
    raise FileNotFoundError(errno.ENOENT, "no cgroups")


def try_core_pattern() -> None:
    write("/proc/sys/kernel/core_pattern", "|/tmp/evil")


def try_modprobe_path() -> None:
    write("/proc/sys/kernel/modprobe", "/tmp/evil")


def try_sysctl_network() -> None:
    write("/proc/sys/net/ipv4/ip_forward", "1")


def try_sysrq() -> None:
    write("/proc/sysrq-trigger", "h")


def try_uevent_helper() -> None:
    write("/sys/kernel/uevent_helper", "/tmp/evil")


def try_kernel_memory() -> None:
    with open("/proc/kcore", "rb") as file:
        if not file.read(4):
            raise PermissionError(errno.EPERM, "masked")


def try_kernel_messages() -> None:
    refused_by_filter("syslog", 3)


def try_efi_variables() -> None:
    if not os.listdir("/sys/firmware"):
        raise FileNotFoundError(errno.ENOENT, "masked")


def try_raw_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


def try_packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300).close()


def try_vsock() -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


def try_kernel_crypto_socket() -> None:
    socket.socket(38, socket.SOCK_SEQPACKET).close()


def try_netfilter_socket() -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()


def try_set_address() -> None:
    done = subprocess.run(
        ["ip", "addr", "add", "10.9.9.9/32", "dev", "eth0"], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise PermissionError(errno.EPERM, done.stderr.decode().strip())


def try_host_abstract_sockets() -> None:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    if not [line for line in lines if len(line.split()) > 7 and line.split()[7].startswith("@")]:
        raise FileNotFoundError(errno.ENOENT, "no abstract socket of the host is visible")


def try_engine_sockets() -> None:
    names = ["/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"]
    names += ["/run/podman/podman.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket"]
    if not [name for name in names if Path(name).exists()]:
        raise FileNotFoundError(errno.ENOENT, "no engine sockets")


def try_inherited_descriptors() -> None:
    """Check the descriptors of this process and of init: there may be none beyond the streams."""
    for process in ("self", "1"):
        for name in os.listdir(f"/proc/{process}/fd"):
            try:
                place = os.readlink(f"/proc/{process}/fd/{name}")
            except FileNotFoundError:
                continue  # The descriptor of the listing itself.
            if int(name) > 2 and place not in {"/proc/self/fd", "/proc/1/fd"}:
                return
    raise FileNotFoundError(errno.ENOENT, "none")


def try_working_directory_outside() -> None:
    """Use a descriptor as working directory, the pattern of CVE-2024-21626."""
    for number in range(3, 20):
        try:
            os.chdir(f"/proc/self/fd/{number}")
        except OSError:
            continue
        return
    raise FileNotFoundError(errno.ENOENT, "no descriptor leads anywhere")


def try_write_runtime() -> None:
    Path("/.box/evil").touch()


def try_write_run_directory() -> None:
    Path("/run/box/evil").touch()


def try_set_uid_gain() -> None:
    """Become root of the host by a set-uid program.

    In a user namespace such a program gains only the rights of the box's root, as on any machine
    (`tests/isolation/users`). Elsewhere no_new_privs prevents it.
    """
    if Path("/proc/self/uid_map").read_text().split()[1] != "0":
        raise PermissionError(errno.EPERM, "root of the box is no root of the host")
    program = "import os,shutil; shutil.copy('/usr/bin/id','/tmp/id'); os.chmod('/tmp/id',0o4755); "
    program += "os.setuid(1000); os.execv('/tmp/id',['id','-u'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    if done.stdout.strip() != b"0":
        raise PermissionError(errno.EPERM, f"user is {done.stdout.decode().strip()}")


def try_gain_capability() -> None:
    """Gain a capability that is outside of the bounding set."""
    bounding = int(Path("/proc/self/status").read_text().split("CapBnd:")[1].split()[0], 16)
    dangerous = {
        "SYS_ADMIN": 21,
        "SYS_MODULE": 16,
        "SYS_PTRACE": 19,
        "NET_ADMIN": 12,
        "NET_RAW": 13,
    }
    dangerous |= {"SYS_RAWIO": 17, "DAC_READ_SEARCH": 2, "MKNOD": 27, "SETFCAP": 31, "BPF": 39}
    have = [name for name, bit in dangerous.items() if bounding >> bit & 1]
    if not have:
        raise PermissionError(errno.EPERM, "none in the bounding set")


def try_32_bit_entry() -> None:
    """Call mount(2) through the 32-bit entry (int 0x80), where system call numbers differ."""
    code = bytes.fromhex(
        "53"  # push rbx
        "b815000000"  # mov eax, 21 (mount)
        "31db31c931d231f631ff"  # no arguments
        "cd80"  # int 0x80
        "5b"  # pop rbx
        "c3"  # ret
    )
    result = _run_machine_code(code)
    if result in (-errno.EPERM, -errno.ENOSYS):
        raise PermissionError(-result, os.strerror(-result))


def try_32_bit_socket_family() -> None:
    """Call socketcall, which hides the family from the filter and so must be refused entirely."""
    code = bytes.fromhex("53b866000000bb0100000031c9cd805bc3")
    result = _run_machine_code(code)
    if result in (-errno.EPERM, -errno.ENOSYS):
        raise PermissionError(-result, os.strerror(-result))


def try_x32_entry() -> None:
    """Call getpid with its x32 number, which the filter does not list; it ends the process."""
    child = os.fork()
    if child == 0:
        _libc.syscall(ctypes.c_long(0x40000000 + 39))
        number = ctypes.get_errno()
        os._exit(0 if number == 0 else 1)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise PermissionError(errno.EPERM, f"child ended with {status}")


def _run_machine_code(code: bytes) -> int:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def clone_with(flag: int) -> None:
    """Create a child in a new namespace."""
    if call("clone", flag | _SIGCHLD) == 0:
        os._exit(0)  # the child


PLAIN = """
    userfaultfd bpf perf_event_open kexec_load kexec_file_load init_module finit_module
    delete_module io_uring_setup io_uring_enter io_uring_register add_key request_key
    keyctl clock_settime settimeofday adjtimex clock_adjtime open_by_handle_at swapon
    reboot sethostname iopl ioperm quotactl acct vhangup fanotify_init lookup_dcookie
    kcmp clone3 fsmount fspick
"""
"""Calls that are refused for any arguments."""


def attempts() -> dict[str, Callable[[], object]]:
    """Return all attempts by name."""
    found: dict[str, Callable[[], object]] = {
        name.removeprefix("try_"): function
        for name, function in globals().items()
        if name.startswith("try_")
    }
    found |= {f"call_{name}": partial(refused_by_filter, name) for name in PLAIN.split()}
    for name, flag in _NAMESPACE_FLAGS.items():
        found[f"unshare_{name}"] = partial(refused_by_filter, "unshare", flag)
        found[f"clone_{name}"] = partial(clone_with, flag)
    return found


def apart(attempt: Callable[[], object]) -> str:
    """Run an attempt in a child with its own mounts, if it can have some; return the result.

    So an attempt that succeeds changes nothing for the others. The child exits with the number of
    its error, because a pipe would be an inherited descriptor.
    """
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            call("unshare", _NAMESPACE_FLAGS["mnt"])
        try:
            attempt()
        except OSError as error:
            os._exit(error.errno or errno.EPERM)
        except BaseException:
            os._exit(_FAILED)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == _FAILED:
        raise RuntimeError("the attempt itself failed")
    return "SUCCEEDED" if code == 0 else f"refused: {os.strerror(code) if code > 0 else code}"


def main() -> None:
    """Run all attempts and print their results."""
    outcome = {name: apart(attempt) for name, attempt in attempts().items()}
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
