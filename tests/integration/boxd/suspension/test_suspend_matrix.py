"""What a suspension keeps of each facility of the kernel: kept, refused by name, or a known gap.

The programs are those of `facilities`. All that are not refused share one box and one suspension.
"""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict
from tests.harness.wait import until
from tests.integration.boxd.suspension import facilities
from tests.integration.boxd.suspension.facilities.program import FACILITIES
from tests.integration.boxd.suspension.facilities.run import GO, RESULTS

if TYPE_CHECKING:
    from tests.harness.boxes.suspending import Guest, Sleepy

pytestmark = pytest.mark.timeout(300)

REFUSED = {
    "inotify_events_in_the_queue": r"`python3` \(pid \d+\) has not read its file notifications yet",
    "netlink_socket_with_unread_data": "has not read a netlink message about the network",
    "packet_pipe": "a pipe is in packet mode",
    "personality": r"`python3` \(pid \d+\) runs under a personality",
    "posix_message_queue": "the box has a POSIX message queue",
    "posix_message_queue_that_nobody_has_open": "the box has a POSIX message queue",
    "posix_message_queue_with_a_signal": "the box has a POSIX message queue",
    "processes_with_one_directory": "two processes share one working directory",
    "removed_name_of_a_file_with_another_one": "has the file /root/one open, which lost this name",
    "secret_memory_file": r"memory that cannot be stored \(memfd_secret\)",
    "semaphore_event_counter": r"`python3` \(pid \d+\) has an eventfd in semaphore mode open",
    "system_call_filter_that_asks_a_program": "an open file of a kind that cannot be stored",
    "tcp_connection_that_nobody_has_accepted": "a TCP connection waits for a program to accept it",
    "tcp_data_that_the_peer_has_no_room_for": "has data that its receiver has not taken",
    "terminal_itself_by_its_name": r"`python3` \(pid \d+\) has its terminal open as /dev/tty",
    "thread_whose_first_thread_has_ended": "the main thread of a program has ended",
    "thread_with_its_own_descriptors": r"a thread of `python3` \(pid \d+\) has open files or",
    "thread_with_its_own_directory": r"a thread of `python3` \(pid \d+\) has open files or",
    "udp_data_that_is_corked": "a UDP socket has data that its program holds back",
    "unix_connection_that_nobody_has_accepted": "a connection of a unix socket waits",
}
"""More of them are in `test_suspend_obstacles`."""
LOST = {
    "early_kill_at_memory_errors": "a hint for broken hardware",
    "filter_of_core_files": "a box writes no core files",
    "memory_locked_on_fault": "a box has no swap, the lock itself is kept",
    "memory_that_is_locked_in_future": "a box has no swap, present locks are kept",
    "multicast_membership": "a box is alone on its link",
    "socket_option_tcp_window_clamp": "a hint for speed",
    "sysv_semaphore_that_is_undone_at_exit": "the kernel shows SEM_UNDO to nobody",
    "tcp_connection_whose_peer_has_reset_it": "the program sees the end of the connection",
    "tcp_urgent_data": "the byte is there, its mark is not",
    "terminal_for_one_process_alone": "a lock among programs of one box",
    "terminal_with_half_a_line_of_input": "what somebody was typing in line mode",
    "udp_datagrams_in_the_queue": "UDP promises no delivery",
    "unix_connection_of_another_user": "SO_PEERCRED names root afterwards",
    "unix_urgent_data": "the byte is there, its mark is not",
}
"""Known gaps (docs/reference/known-gaps.md), with the reason."""
EPERM, EINVAL, ENOSYS, NO_DEVICE, NO_SPACE, NO_FAMILY, NO_PROTOCOL, READ_ONLY = map(
    os.strerror,
    (
        errno.EPERM,
        errno.EINVAL,
        errno.ENOSYS,
        errno.ENODEV,
        errno.ENOSPC,
        errno.EAFNOSUPPORT,
        errno.EPROTONOSUPPORT,
        errno.EROFS,
    ),
)
NOT_IN_A_BOX = {
    "bluetooth_socket": NO_FAMILY,
    "cgroup_namespace": EPERM,
    "confinement_by_landlock": ENOSYS,
    "crypto_socket": NO_FAMILY,
    "deadline_scheduling": EPERM,
    "directory_notification": EINVAL,
    "host_name_namespace": EPERM,
    "input_output_ring": ENOSYS,
    "instruction_cpuid_that_traps": NO_DEVICE,
    "ipc_namespace": EPERM,
    "kernel_program": EPERM,
    "key_ring": EPERM,
    "memory_policy": EPERM,
    "memory_with_a_protection_key": NO_SPACE,
    "memory_that_is_never_writable_and_executable": EINVAL,
    "mount_namespace": EPERM,
    "mount_of_its_own": EPERM,
    "nested_cgroup": READ_ONLY,
    "multipath_socket": NO_PROTOCOL,
    "netlink_socket_of_events": NO_PROTOCOL,
    "network_namespace": EPERM,
    "packet_socket": NO_FAMILY,
    "page_faults_of_user_space": EPERM,
    "performance_counter": EPERM,
    "process_namespace": EPERM,
    "raw_socket": EPERM,
    "realtime_scheduling": EPERM,
    "scheduling_in_a_core_of_its_own": EINVAL,
    "segment_descriptor_table": ENOSYS,
    "session_key_ring": EPERM,
    "socket_of_the_hypervisor": NO_FAMILY,
    "speculation_control": NO_DEVICE,
    "strict_system_call_filter": EINVAL,
    "system_calls_that_user_space_dispatches": EINVAL,
    "system_wide_file_notification": EPERM,
    "time_namespace": EPERM,
    "user_namespace": EPERM,
}
"""What no program of a box can have, and the error that it gets."""
NOT_EVERYWHERE = {
    "mapping_of_huge_pages",
    "memory_file_of_huge_pages",
    "name_of_memory",
    "pages_that_guard",
    "process_that_may_trace",
    "restartable_sequences",
    "sealed_mapping",
    "secret_memory_file",
}
"""What some kernels and processors lack. Where a program begins, it is kept or refused."""


async def begin(sleepy: Sleepy, names: list[str]) -> tuple[Guest, Path, dict[str, str]]:
    """A box in which the programs use their facilities, and the directory of their results.

    As well why programs could not begin.
    """
    guest = await sleepy.guest(pids=1024, mem_mb=2048)
    host, box = sleepy.host, guest.box
    await host.run(box, "sh", "-c", "cat > /root/facilities.zip", stdin=archive())
    command = f"setsid /usr/bin/python3 /root/facilities.zip {' '.join(names)}"
    await host.run(box, "sh", "-c", f"{command} </dev/null >/root/out 2>&1 &")
    results = host.names.paths(box).root / str(RESULTS).lstrip("/")
    await until(
        lambda: all((results / f"{name}.ready").exists() or there(results, name) for name in names)
    )
    failures = {name: (results / name).read_text() for name in names if there(results, name)}
    return guest, results, failures


def archive() -> bytes:
    """The package `facilities` as a program that Python runs."""
    package = facilities.__name__.replace(".", "/")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for module in Path(facilities.__file__).parent.glob("*.py"):
            archive.write(module, f"{package}/{module.name}")
        for parent in Path(package).parents[:-1]:
            archive.writestr(f"{parent}/__init__.py", "")
        archive.writestr("__main__.py", f"from {facilities.__name__}.run import main\nmain()\n")
    return data.getvalue()


def there(results: Path, name: str) -> bool:
    return (results / name).exists()


async def test_what_is_not_refused_is_kept_or_a_known_gap(sleepy: Sleepy) -> None:
    names = [name for name in FACILITIES if name not in REFUSED | NOT_IN_A_BOX]
    guest, results, failures = await begin(sleepy, names)
    assert not {name: failures[name] for name in failures.keys() - NOT_EVERYWHERE}
    asleep = await sleepy.suspend(guest)
    await sleepy.resume(guest)
    await guest.goes_on(asleep["tick"])
    await sleepy.host.run(guest.box, "touch", str(GO))
    await until(lambda: all(there(results, name) for name in names))
    verdicts = {name: (results / name).read_text() for name in names if name not in failures}
    lost = {name: verdict for name, verdict in verdicts.items() if verdict != "kept"}
    assert lost.keys() == LOST.keys(), lost


async def test_what_a_box_cannot_have_fails_with_its_error(sleepy: Sleepy) -> None:
    _, _, failures = await begin(sleepy, list(NOT_IN_A_BOX))
    last = {name: text.strip().splitlines()[-1] for name, text in failures.items()}
    others = {name: line for name, line in last.items() if NOT_IN_A_BOX[name] not in line}
    assert not others
    assert last.keys() == NOT_IN_A_BOX.keys()


@pytest.mark.parametrize("name", REFUSED)
async def test_what_would_be_lost_is_refused(sleepy: Sleepy, name: str) -> None:
    guest, results, failures = await begin(sleepy, [name])
    if failures:
        assert name in NOT_EVERYWHERE, failures
        return
    backend = sleepy.host.backend
    await backend.freeze(guest.box)
    with pytest.raises(Conflict, match=REFUSED[name]):
        await backend.save_memory(guest.box)
    await backend.thaw(guest.box)
    await guest.goes_on()
    await sleepy.host.run(guest.box, "touch", str(GO))
    await until(lambda: there(results, name))
    assert (results / name).read_text() == "kept"


def test_every_name_is_a_program() -> None:
    assert {*REFUSED, *LOST, *NOT_IN_A_BOX, *NOT_EVERYWHERE} <= FACILITIES.keys()
    assert len(FACILITIES) >= 280
