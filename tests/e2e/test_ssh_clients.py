"""What users do with clients of theirs in real boxes: mounts, trees of files, many at once."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.e2e.service import Person
from tests.harness.ssh.openssh import run
from tests.harness.ssh.sshfs import working_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

HOST = "127.0.0.1"
MIB = 1 << 20
AT_ONCE = 100


@pytest.fixture(scope="module")
def user(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Has a key of their own and a box that runs."""
    person = Person(daemon, tmp_path_factory.mktemp("user") / "home")
    person.run("dev", "true")
    return person


def ssh_of(user: Person) -> list[str]:
    """`ssh` with all that is needed but the host."""
    return ["ssh", *user.options, "-p", str(user.service.ssh_port)]


def small_files(root: Path) -> None:
    """A hundred in three directories, and a larger one."""
    for number in range(100):
        folder = root / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_bytes(os.urandom(number * 24))
    (root / "large").write_bytes(os.urandom(2 * MIB))


async def sums(root: Path) -> str:
    """What `SUMS` prints here."""
    done = await run(["bash", "-c", f"cd {root} && {SUMS}"])
    return done.text


SUMS = "find . -type f -exec sha256sum {} + | sort"


async def test_the_drive_is_mounted_by_sshfs(user: Person, tmp_path: Path) -> None:
    work = """
        mkdir -p deep; head -c 5M /dev/urandom > deep/data; sha256sum < deep/data
        mv deep/data deep/moved; ln -s moved deep/link; chmod 640 deep/moved
        echo more >> deep/link; cp deep/moved copy; truncate -s 3 copy
        df . > /dev/null; cat missing 2> /dev/null || echo missing
    """
    mounted = working_in(f"dev@{HOST}:/wrk", ssh_of(user), tmp_path / "mount", work)
    done = await run(mounted)
    assert done.status == 0, done.errors
    digest, missing = done.text.splitlines()
    assert missing == "missing"
    show = "cd /wrk; head -c -5 deep/link | sha256sum; stat -c %a deep/moved; wc -c < copy"
    assert user.run("dev", show).splitlines() == [digest, "640", "3"]


async def test_a_tree_travels_to_the_drive_by_rsync_and_back_by_scp(
    user: Person, tmp_path: Path
) -> None:
    sent, back = tmp_path / "sent", tmp_path / "back"
    small_files(sent)
    expected = await sums(sent)
    command = ["rsync", "-a", "-i", "-e", " ".join(ssh_of(user)), f"{sent}/", f"dev@{HOST}:/wrk/t/"]
    first = await run(command)
    assert (first.status, first.errors) == (0, "")
    assert user.run("dev", f"cd /wrk/t && {SUMS}") == expected
    assert (await run(command)).text == "", "nothing has changed"
    port = ["-P", str(user.service.ssh_port)]
    scp = ["scp", "-q", "-r", *user.options, *port]
    assert (await run([*scp, f"dev@{HOST}:/wrk/t", str(back)])).status == 0
    assert await sums(back) == expected
    # Names are taken from the home, with and without a sign for it.
    data = str(sent / "large")
    assert (await run([*scp, data, f"dev@{HOST}:~/one"])).status == 0
    assert (await run([*scp, "-O", f"dev@{HOST}:one", str(tmp_path / "two")])).status == 0
    assert (tmp_path / "two").read_bytes() == (sent / "large").read_bytes()


async def test_a_hundred_connections_at_once_have_their_own_output(user: Person) -> None:
    commands = (user.ssh_command("dev", f"cat; echo {n}; exit 7") for n in range(AT_ONCE))
    done = await asyncio.gather(*(run(command, b"in\n", 120) for command in commands))
    for number, one in enumerate(done):
        assert (one.status, one.text, one.errors) == (7, f"in\n{number}\n", "")


async def test_names_are_those_that_the_box_knows(user: Person) -> None:
    user.run(
        "dev",
        "echo 127.0.0.1 only-here.example >> /etc/hosts;"
        " echo nameserver 127.0.0.1 > /etc/resolv.conf",
    )
    known = user.forward("dev", "only-here.example:9")
    assert b"dial only-here.example:9: connection refused" in known.stderr
    unknown = user.forward("dev", "nowhere.invalid:80")
    assert b"dial nowhere.invalid:80: temporary failure in name resolution" in unknown.stderr
    assert {known.returncode, unknown.returncode} == {255}
