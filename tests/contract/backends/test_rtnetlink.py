"""Links and namespaces as `ip` sees what was made without it."""

from __future__ import annotations

import errno
import json
import os
import secrets
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.checkpoint import netns
from boxd.backends.host.run import run
from boxd.backends.network.rtnetlink import (
    LOOPBACK,
    NAMES,
    LinkFailed,
    apart,
    enter,
    kernel,
    make_namespace,
    name_namespace,
    open_own,
    remove_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LINK = f"t{secrets.token_hex(4)}"
SHARING_HOST = """
mount -t tmpfs -o mode=755 run /run
mount --make-rshared /run
mkdir /run/netns
{first}
exec "$PYTHON" -c "$WORDS"
"""
REMOVAL = """
import subprocess
from threading import Thread
from boxd.backends.network import rtnetlink

one = Thread(target=rtnetlink.make_namespace, args=["one"])
one.start()
one.join()
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
rtnetlink.remove_namespace("one")
print([place.name for place in rtnetlink.NAMES.iterdir() if place.name != "other"])
"""
CHOSEN = 3
"""NET_ADDR_SET: udev replaces the addresses that the kernel chooses at random, but not these."""
OWN = 2
"""A hardware address of one station, of local administration."""
GATEWAY, BOX = IPv4Address("10.255.250.1"), IPv4Address("10.255.250.2")


@pytest.fixture
def name() -> Iterator[str]:
    """Of a namespace that is not there; what is made of it, and LINK, is removed."""
    chosen = f"boxd-test-{secrets.token_hex(4)}"
    yield chosen
    with kernel() as host:
        host.remove_link(LINK)
    remove_namespace(chosen)


def connect(name: str) -> None:
    """A namespace with a link, whose ends are set up."""
    with kernel() as host:
        make_namespace(name)
        namespace = open_own()
        try:
            host.add_pair(LINK, "eth0", namespace, mtu=1400)
        finally:
            os.close(namespace)
        host.no_own_address(LINK)
        host.add_address(LINK, IPv4Interface(f"{GATEWAY}/30"))
        host.switch(LINK, up=True)
    with kernel() as inside:
        inside.switch(LOOPBACK, up=True)
        inside.add_address("eth0", IPv4Interface(f"{BOX}/30"))
        inside.switch("eth0", up=True)
        inside.add_default_route(GATEWAY)


async def told(*command: str) -> list[dict[str, Any]]:
    """What `ip` says."""
    found: list[dict[str, Any]] = json.loads(await run("ip", "-j", *command))
    return found


async def test_a_link_is_what_ip_would_have_made(name: str) -> None:
    await apart(lambda: connect(name))
    (here,) = await told("addr", "show", "dev", LINK)
    assert (here["mtu"], "UP" in here["flags"]) == (1400, True)
    assert [(one["local"], one["prefixlen"]) for one in here["addr_info"]] == [(str(GATEWAY), 30)]
    (there,) = await told("-n", name, "-4", "addr", "show", "dev", "eth0")
    assert there["operstate"] == "UP"
    assert [one["local"] for one in there["addr_info"]] == [str(BOX)]
    routes = await told("-n", name, "route", "show", "default")
    assert [(one["gateway"], one["dev"]) for one in routes] == [(str(GATEWAY), "eth0")]
    await run("ip", "netns", "exec", name, "true")
    assert (await run("ip", "netns", "list")).split().count(name) == 1


async def test_udev_keeps_the_hardware_address(name: str) -> None:
    await apart(lambda: connect(name))
    link = Path("/sys/class/net", LINK)
    assert int((link / "addr_assign_type").read_text()) == CHOSEN
    assert int((link / "address").read_text()[:2], 16) & 3 == OWN


@pytest.mark.parametrize("first", ["true", "ip netns add other"])
def test_a_name_can_be_removed_after_the_host_has_stopped_to_share_mounts(first: str) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-euc", SHARING_HOST.format(first=first)],
        env={**os.environ, "PYTHON": sys.executable, "WORDS": REMOVAL},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


async def test_only_the_thread_that_made_it_was_in_the_namespace(name: str) -> None:
    before = os.readlink("/proc/self/ns/net")
    await apart(lambda: connect(name))
    assert os.readlink("/proc/self/ns/net") == before
    assert await apart(lambda: os.readlink("/proc/thread-self/ns/net")) == before


async def test_what_is_done_twice_or_not_at_all_is_no_error(name: str) -> None:
    await apart(lambda: connect(name))
    address = IPv4Interface("10.255.251.1/32")

    def inside() -> None:
        enter(name)
        with kernel() as one:
            one.add_address(LOOPBACK, address)
            one.add_address(LOOPBACK, address)
            one.remove_address(LOOPBACK, address)
            one.remove_address(LOOPBACK, address)

    await apart(inside)
    remove_namespace(name)
    remove_namespace(name)
    with kernel() as host:
        host.remove_link(LINK)
        host.remove_link(LINK)
    assert not (NAMES / name).exists()


async def test_a_namespace_of_a_process_gets_a_name_once(name: str) -> None:
    origin = Path(f"/proc/{os.getpid()}/ns/net")
    name_namespace(name, origin)
    assert (NAMES / name).samefile(origin)
    with pytest.raises(LinkFailed, match="File exists") as failure:
        name_namespace(name, origin)
    assert failure.value.number == errno.EEXIST


async def test_what_the_kernel_refuses_is_told() -> None:
    with kernel() as host, pytest.raises(LinkFailed, match="finding link nolink9 failed: No such"):
        host.switch("nolink9", up=True)
    with pytest.raises(LinkFailed, match="opening namespace boxd-test-none failed"):
        await apart(lambda: enter("boxd-test-none"))


async def test_an_address_is_lent_and_taken_back(name: str) -> None:
    await apart(lambda: connect(name))
    await netns.set_up(name, None, "10.255.251.1", str(BOX))
    before = await told("-n", name, "-4", "addr", "show", "dev", "lo")
    await netns.take_back(name, "10.255.251.1", str(BOX))
    after = await told("-n", name, "-4", "addr", "show", "dev", "lo")
    addresses = [[one["local"] for one in links[0]["addr_info"]] for links in (before, after)]
    assert addresses == [["127.0.0.1", "10.255.251.1"], ["127.0.0.1"]]
    await netns.take_back(name, "10.255.251.1", str(BOX))
