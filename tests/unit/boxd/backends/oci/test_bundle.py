"""The OCI configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from box_guest import protocol
from boxd.backends.host.names import HostNames
from boxd.backends.network.fence import DNS_ADDRESSES
from boxd.backends.oci import bundle, mount_table
from boxd.backends.oci.lxcfs import Lxcfs
from tests.harness.boxes.plans import FACTS, PLACES, PLAN


def made(cpus: float = PLAN.cpus) -> dict[str, Any]:
    """The configuration of a changed plan."""
    return bundle.config(replace(PLAN, cpus=cpus), PLACES, FACTS)


def mount(config: dict[str, Any], place: str) -> dict[str, Any]:
    """The one mount at a place."""
    (found,) = [one for one in config["mounts"] if one["destination"] == place]
    return dict(found)


def test_init_and_places_agree_with_the_agent() -> None:
    assert str(protocol.RUNTIME_DIR) == bundle.RUNTIME_DIR
    assert str(protocol.RUN_DIR) == bundle.RUN_DIR
    assert str(protocol.DRIVE_DIR) == bundle.DRIVE_DIR
    assert made()["process"]["args"] == [
        "/.box/lib/ld-linux-x86-64.so.2",
        "--library-path",
        "/.box/lib",
        "/.box/bin/python3",
        "-m",
        "box_guest",
    ]
    other = bundle.config(PLAN, PLACES, FACTS, ("/bin/sh",))
    assert other["process"]["args"] == ["/bin/sh"]


def test_a_box_that_mounts_gets_that_and_nothing_else() -> None:
    plain = bundle.config(PLAN, PLACES, FACTS)
    config = bundle.config(PLAN, PLACES, FACTS, fuse=True)
    for rights in config["process"]["capabilities"].values():
        assert "CAP_SYS_ADMIN" not in rights or rights.pop() == "CAP_SYS_ADMIN"
    calls = config["linux"]["seccomp"]["syscalls"].pop()
    assert set(calls["names"]) == {"fsopen", "fsconfig", "fsmount", "move_mount", "umount2"}
    (device,) = config["linux"].pop("devices")
    assert (device["path"], device["major"], device["minor"]) == ("/dev/fuse", 10, 229)
    rule = config["linux"]["resources"]["devices"].pop()
    assert rule == {"allow": True, "access": "rw", "type": "c", "major": 10, "minor": 229}
    assert config == plain


def test_every_namespace_is_the_boxs_own() -> None:
    spaces = made()["linux"]["namespaces"]
    assert {one["type"] for one in spaces} == {"mount", "pid", "ipc", "uts", "cgroup", "network"}
    assert {"type": "network", "path": "/run/netns/x"} in spaces


def test_rights_are_few_and_alike_in_every_set() -> None:
    process = made()["process"]
    sets = process["capabilities"]
    for name in ("bounding", "effective", "permitted"):
        assert sets[name] == list(bundle.CAPABILITIES)
    assert sets["inheritable"] == sets["ambient"] == []
    refused = {"NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP", "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}
    assert not {f"CAP_{name}" for name in refused} & set(bundle.CAPABILITIES)
    assert process["noNewPrivileges"] is True
    assert process["oomScoreAdj"] > 0
    assert process["terminal"] is False


@pytest.mark.parametrize(("host", "files"), [(1_000_000, bundle.NOFILE), (4096, 4096)])
def test_open_files_stay_below_the_hosts_limit(host: int, files: int) -> None:
    config = bundle.config(PLAN, PLACES, replace(FACTS, nofile=host))
    limits = {one["type"]: (one["soft"], one["hard"]) for one in config["process"]["rlimits"]}
    assert limits == {"RLIMIT_NOFILE": (files, files), "RLIMIT_CORE": (0, 0)}


def test_caps() -> None:
    resources = made()["linux"]["resources"]
    assert resources["memory"] == {"limit": 512 * 1024**2, "swap": 512 * 1024**2}
    assert resources["cpu"] == {"quota": 15_000, "period": 10_000, "shares": 1536}
    assert resources["pids"] == {"limit": 99}
    assert resources["devices"] == [{"allow": False, "access": "rwm"}]


def test_swap_is_left_alone_where_the_kernel_does_not_count_it() -> None:
    config = bundle.config(PLAN, PLACES, replace(FACTS, caps_swap=False))
    assert config["linux"]["resources"]["memory"] == {"limit": 512 * 1024**2}


def test_tiny_shares_of_a_cpu_are_what_the_kernel_takes_at_least() -> None:
    for cpus, cpu in {
        0.1: {"quota": 1000, "period": 10_000, "shares": 102},
        0.05: {"quota": 1000, "period": 20_000, "shares": 51},
        0.001: {"quota": 1000, "period": 1_000_000, "shares": 2},
        0.0: {"quota": 1000, "period": 1_000_000, "shares": 2},
    }.items():
        assert made(cpus=cpus)["linux"]["resources"]["cpu"] == cpu


def test_each_directory_of_sys_is_hidden_by_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sys/firmware").mkdir(parents=True)
    (tmp_path / "sys/kernel/debug").mkdir(parents=True)
    (tmp_path / "proc/acpi").mkdir(parents=True)
    found = bundle.hidden(tmp_path)
    assert found == ("/sys/firmware", "/sys/kernel/debug")
    config = bundle.config(PLAN, PLACES, replace(FACTS, hidden=found))
    over = mount(config, "/sys/firmware")
    assert (over["type"], over["source"]) == (
        "bind",
        "/run/boxd-1/masks/directories/sys-firmware",
    )
    assert mount_table.shared_sources(config) == []
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(over["options"])
    left = set(bundle.MASKED_PATHS) - set(found)
    assert set(config["linux"]["maskedPaths"]) == left


def test_files_that_tell_the_size_of_the_box() -> None:
    sizes = Lxcfs(HostNames("abcdef", Path("/state"))).files("1")
    config = bundle.config(PLAN, replace(PLACES, sizes=sizes), FACTS)
    for place, source in sizes.items():
        over = mount(config, place)
        assert over["source"] == str(source)
        assert {"ro", "nosuid", "nodev", "noexec", "private"} <= set(over["options"])
    assert mount_table.shared_sources(config) == []


def test_what_comes_from_the_host_is_read_only() -> None:
    config = made()
    binds = {one["destination"]: one for one in config["mounts"] if one["type"] == "bind"}
    assert {place: one["source"] for place, one in binds.items()} == {
        "/.box": "/runtime/1",
        "/run/box": "/boxes/x/run",
    }
    for one in binds.values():
        assert {"bind", "ro", "private", "nosuid", "nodev"} <= set(one["options"])
        assert "rbind" not in one["options"]
    for place in ("/sys", "/sys/fs/cgroup"):
        assert "ro" in mount(config, place)["options"]


def test_memory_files_are_bounded() -> None:
    assert "size=268435456" in mount(made(), "/dev/shm")["options"]
    assert any(o.startswith("size=") for o in mount(made(), "/run")["options"])
    assert not [one for one in made()["mounts"] if one["destination"] == "/tmp"]


def test_etc_files() -> None:
    files = bundle.etc_files("dev")
    assert files["hostname"] == "dev\n"
    assert "127.0.1.1\tdev\n" in files["hosts"]
    assert files["resolv.conf"].split()[1::2] == [str(address) for address in DNS_ADDRESSES]


REFUSED = (
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "mount_setattr",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "add_key",
    "request_key",
    "keyctl",
    "clock_settime",
    "clock_settime64",
    "settimeofday",
    "stime",
    "adjtimex",
    "clone3",
    "open_by_handle_at",
    "socketcall",
    "reboot",
    "swapon",
    "syslog",
    "iopl",
    "ioperm",
    "vm86",
    "kcmp",
    "acct",
)


class TestSeccomp:
    """The profile as data."""

    def allowed(self) -> dict[str, list[dict[str, Any]]]:
        """Rules that allow, by call."""
        found: dict[str, list[dict[str, Any]]] = {}
        for rule in bundle.seccomp()["syscalls"]:
            if rule["action"] == "SCMP_ACT_ALLOW":
                for name in rule["names"]:
                    found.setdefault(name, []).append(rule)
        return found

    def test_what_is_not_named_is_refused(self) -> None:
        profile = bundle.seccomp()
        assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
        assert profile["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]

    @pytest.mark.parametrize("name", REFUSED)
    def test_refused(self, name: str) -> None:
        assert name not in self.allowed()

    def test_namespaces_are_never_made(self) -> None:
        for name, bits in (("clone", 0x7E020000), ("unshare", 0x7E020080)):
            (rule,) = self.allowed()[name]
            assert rule["args"] == [
                {"index": 0, "value": bits, "op": "SCMP_CMP_MASKED_EQ", "valueTwo": 0}
            ]

    def test_socket_families(self) -> None:
        rules = [[(a["index"], a["value"]) for a in r["args"]] for r in self.allowed()["socket"]]
        assert rules == [
            [(0, 1)],
            [(0, 2), (2, 256)],
            [(0, 10), (2, 256)],
            [(0, 16), (2, 0)],
            [(0, 16), (2, 4)],
        ]

    def test_libraries_are_told_to_fall_back(self) -> None:
        told = {
            name: rule["errnoRet"]
            for rule in bundle.seccomp()["syscalls"]
            if rule["action"] == "SCMP_ACT_ERRNO"
            for name in rule["names"]
        }
        assert told["clone3"] == told["io_uring_setup"] == told["socketcall"] == 38
        assert told["pkey_alloc"] == 28
        assert told["landlock_create_ruleset"] == told["landlock_restrict_self"] == 38


def test_paths_that_the_kernel_lacks_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/sys").mkdir(parents=True)
    (tmp_path / "proc/keys").touch()
    lacking = bundle.missing(tmp_path)
    assert "/proc/kcore" in lacking
    facts = bundle.HostFacts(FACTS.nofile, FACTS.caps_swap, missing=lacking)
    linux = bundle.config(PLAN, PLACES, facts)["linux"]
    assert linux["maskedPaths"] == ["/proc/keys"]
    assert linux["readonlyPaths"] == ["/proc/sys"]
