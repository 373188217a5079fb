"""Lists of system calls for the service's own processes, as filters for the kernel.

Everything else fails with EPERM. New namespaces, other processes' memory, kernel modules, mounts,
keys, BPF, performance counters and io_uring are in no list.
"""

from __future__ import annotations

import errno
import socket
import tempfile
from functools import cache

from boxd.errors import Unavailable

_NEW_NAMESPACES = 0x7E020000
"""Flags of clone(2) that create namespaces."""
_THREAD = 0x10000
"""The flag of clone(2) that creates a thread of the same process."""
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""Families of sockets. Of netlink there is only the protocol NETLINK_ROUTE, with which the C
library looks up addresses."""

_FILES = (
    "access chdir chmod close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 "
    "fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fcntl fdatasync fgetxattr flock fstat "
    "fstatfs fsync ftruncate getcwd getdents getdents64 getxattr inotify_add_watch inotify_init1 "
    "inotify_rm_watch ioctl lgetxattr link linkat listxattr llistxattr lseek lstat mkdir mkdirat "
    "newfstatat open openat "
    "openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat "
    "readv rename renameat renameat2 rmdir sendfile splice stat statfs statx symlink symlinkat "
    "sync_file_range syncfs truncate umask unlink unlinkat utime utimensat utimes write writev"
)
_PROCESSES = (
    "alarm arch_prctl execve execveat exit exit_group fork getegid geteuid getgid getgroups "
    "getitimer getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage "
    "getsid gettid getuid kill membarrier pause pidfd_open pidfd_send_signal prctl prlimit64 "
    "restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn "
    "rt_sigsuspend rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler "
    "sched_yield "
    "get_robust_list set_robust_list set_tid_address setitimer setpgid setpriority setrlimit "
    "setsid sigaltstack sysinfo tgkill times tkill uname vfork wait4 waitid"
)
_MEMORY = "brk madvise memfd_create mincore mmap mprotect mremap msync munmap"
_WAITING = (
    "clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait "
    "epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_waitv getrandom gettimeofday nanosleep "
    "pipe pipe2 poll ppoll pselect6 select signalfd4 time timerfd_create timerfd_gettime "
    "timerfd_settime"
)
_SOCKETS = (
    "accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg "
    "recvmsg sendmmsg sendmsg sendto setsockopt shutdown socketpair"
)
_SHARED_MEMORY = (
    "semctl semget semop semtimedop shmat shmctl shmdt shmget sync"  # PostgreSQL's control block
)
_PYTHON = f"{_FILES} {_PROCESSES} {_MEMORY} {_WAITING} {_SOCKETS}"
LISTS = {
    "front": " ".join(set(_PYTHON.split()) - {"execve", "execveat", "fork", "vfork"}),
    "mount": _PYTHON,
    "objectserver": _PYTHON,
    "renderer": f"{_FILES} {_PROCESSES} {_MEMORY} {_WAITING}",
    "postgres": f"{_PYTHON} {_SHARED_MEMORY}",
}
"""Names of calls by kind of process. A kernel that lacks a call does not need it."""


@cache
def program(name: str) -> bytes:
    """Return the filter of a list as BPF. Raises Unavailable without libseccomp."""
    try:
        import pyseccomp  # loads libseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(
            f"libseccomp cannot be loaded: {error}; run: apt-get install libseccomp2"
        ) from None
    rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ERRNO(errno.EPERM))
    for call in LISTS[name].split():
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call) >= 0:
            rules.add_rule(pyseccomp.ALLOW, call)
    # The C library creates threads with clone if clone3 does not exist. A filter cannot see the
    # flags of clone3.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    # Without `execve` a process creates threads only.
    processes = "execve" in LISTS[name].split()
    mask, flags = (_NEW_NAMESPACES, 0) if processes else (_NEW_NAMESPACES | _THREAD, _THREAD)
    rules.add_rule(pyseccomp.ALLOW, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, mask, flags))
    if "connect" in LISTS[name].split():
        for family in FAMILIES:
            rules.add_rule(pyseccomp.ALLOW, "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
        netlink = pyseccomp.Arg(0, pyseccomp.EQ, socket.AF_NETLINK)
        route = pyseccomp.Arg(2, pyseccomp.EQ, 0)
        rules.add_rule(pyseccomp.ALLOW, "socket", netlink, route)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
