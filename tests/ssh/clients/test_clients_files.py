"""Transfers that go on where they stopped, many small files, and names of any bytes."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from tests.harness.servers.fault_proxy import FaultProxy, Toxic
from tests.harness.ssh.openssh import HOST, Client, run
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Done

MIB = 1 << 20
PART = 3 * MIB + 17
"""Where a transfer stopped."""


def tree_of(root: bytes) -> dict[bytes, bytes]:
    """Relative path to content, of all files below `root`; paths are bytes."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def small_files(root: Path, count: int) -> dict[bytes, bytes]:
    """`count` files of 0 to 4 KB in directories of a hundred."""
    for number in range(count):
        folder = root / str(number // 100)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_bytes(os.urandom(number * 4 % 4096))
    return tree_of(os.fsencode(root))


def named_by_every_byte(root: Path) -> dict[bytes, bytes]:
    """Some files in whose names each byte stands that a name can have; most are no UTF-8."""
    root.mkdir()
    every = bytes(byte for byte in range(1, 256) if byte not in b"/\n")
    for name in (every[:64], every[64:128], every[128:], b" -x \\ ", b"\xe4" * 200):
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(name)
    return tree_of(os.fsencode(root))


async def sftp(client: Client, tmp_path: Path, *lines: str) -> Done:
    """A batch by OpenSSH's sftp, which makes new keys as it goes."""
    batch = tmp_path / "batch"
    batch.write_text("\n".join(lines) + "\n")
    options = [*client.options(), "-o", "User=web", "-o", "RekeyLimit=1M"]
    return await run(["sftp", *options, "-b", str(batch), HOST])


def rsync(client: Client, *words: str) -> list[str]:
    """The command line of rsync over ssh to box `web`."""
    shell = shlex.join(["ssh", *client.options(), "-l", "web"])
    return ["rsync", "-e", shell, *words]


async def test_sftp_transfers_go_on_where_they_stopped(
    front_door: Entrance, tmp_path: Path
) -> None:
    data = os.urandom(6 * MIB)
    # What is there already is something else, so that it shows whether it was sent again.
    begun = bytes(PART)
    (tmp_path / "whole").write_bytes(data)
    (tmp_path / "down").write_bytes(begun)
    (tmp_path / "up").write_bytes(begun)
    whole = tmp_path / "whole"
    done = await sftp(
        front_door.client,
        tmp_path,
        f"reget {whole} {tmp_path / 'down'}",
        f"reput {whole} {tmp_path / 'up'}",
    )
    assert (done.status, done.errors) == (0, "")
    assert (tmp_path / "down").read_bytes() == begun + data[PART:]
    assert (tmp_path / "up").read_bytes() == begun + data[PART:]


async def test_rsync_goes_on_after_its_connection_was_cut(
    front_door: Entrance, tmp_path: Path
) -> None:
    """Its end in the box is hung up, not killed: it keeps what has come."""
    data = os.urandom(6 * MIB)
    (tmp_path / "whole").write_bytes(data)
    copy = tmp_path / "copy"
    detour = FaultProxy((HOST, 0), (HOST, front_door.door.port))
    assert isinstance(detour.listen, tuple)
    client = Client(tmp_path / "user", detour.listen[1], front_door.door.host_key)
    command = rsync(client, "--partial", "--stats", str(tmp_path / "whole"), f"{HOST}:{copy}")
    try:
        detour.toxic = Toxic(limit=PART)
        assert (await run(command)).status != 0
        await until(copy.exists)
        kept = copy.stat().st_size
        assert 0 < kept < len(data)
        detour.toxic = Toxic()
        done = await run(command)
    finally:
        detour.close()
    assert done.status == 0
    assert copy.read_bytes() == data
    (matched,) = [line for line in done.text.splitlines() if line.startswith("Matched data:")]
    assert int(matched.split()[2].replace(",", "")) > kept // 2


async def test_a_thousand_small_files_by_rsync(front_door: Entrance, tmp_path: Path) -> None:
    sent = small_files(tmp_path / "sent", 1000)
    there, back = tmp_path / "there", tmp_path / "back"
    for source, target in ((tmp_path / "sent", f"{HOST}:{there}"), (f"{HOST}:{there}", back)):
        done = await run(rsync(front_door.client, "-a", f"{source}/", f"{target}/"))
        assert (done.status, done.errors) == (0, "")
    assert tree_of(os.fsencode(there)) == sent
    assert tree_of(os.fsencode(back)) == sent


async def test_a_hundred_small_files_by_scp_in_both_modes(
    front_door: Entrance, tmp_path: Path
) -> None:
    """Each file is some questions and answers, which must not wait for anything else."""
    sent = small_files(tmp_path / "sent", 100)
    options = [*front_door.client.options(), "-q", "-r", "-o", "User=web"]
    done = await run(["scp", *options, str(tmp_path / "sent"), f"{HOST}:{tmp_path / 'there'}"])
    assert (done.status, done.errors) == (0, "")
    assert tree_of(os.fsencode(tmp_path / "there")) == sent
    old = [f"{HOST}:{tmp_path / 'there'}", str(tmp_path / "back")]
    done = await run(["scp", "-O", *options, *old])
    assert (done.status, done.errors) == (0, "")
    assert tree_of(os.fsencode(tmp_path / "back")) == sent


async def test_names_of_any_bytes_arrive_as_they_are(front_door: Entrance, tmp_path: Path) -> None:
    client = front_door.client
    sent = named_by_every_byte(tmp_path / "sent")
    options = [*client.options(), "-q", "-r", "-o", "User=web"]
    ways = {
        "rsync": rsync(client, "-a", f"{tmp_path / 'sent'}/", f"{HOST}:{tmp_path / 'rsync'}/"),
        "up": ["scp", *options, str(tmp_path / "sent"), f"{HOST}:{tmp_path / 'up'}"],
        "down": ["scp", *options, f"{HOST}:{tmp_path / 'up'}", str(tmp_path / "down")],
        "old": ["scp", "-O", *options, f"{HOST}:{tmp_path / 'up'}", str(tmp_path / "old")],
    }
    for way, command in ways.items():
        done = await run(command)
        assert (done.status, done.errors) == (0, ""), way
        assert tree_of(os.fsencode(tmp_path / way)) == sent, way
    done = await sftp(client, tmp_path, f"get -r {tmp_path / 'up'} {tmp_path / 'sftp'}")
    assert (done.status, done.errors) == (0, "")
    assert tree_of(os.fsencode(tmp_path / "sftp")) == sent


async def test_sftp_copies_links_and_syncs_where_the_files_are(
    front_door: Entrance, tmp_path: Path
) -> None:
    """OpenSSH's extensions of the protocol."""
    data = os.urandom(MIB + 1)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "old").write_text("old")
    done = await sftp(
        front_door.client,
        tmp_path,
        f"cp {tmp_path / 'a'} {tmp_path / 'copy'}",
        f"ln {tmp_path / 'a'} {tmp_path / 'linked'}",
        f"ln -s a {tmp_path / 'symbolic'}",
        f"put -fp {tmp_path / 'a'} {tmp_path / 'synced'}",
        f"rename {tmp_path / 'copy'} {tmp_path / 'old'}",
        f"ls -lan {tmp_path}",
    )
    assert (done.status, done.errors) == (0, "")
    assert (tmp_path / "old").read_bytes() == data
    assert (tmp_path / "linked").stat().st_nlink == 2
    assert os.readlink(tmp_path / "symbolic") == "a"
    assert (tmp_path / "synced").stat().st_mtime == int((tmp_path / "a").stat().st_mtime)


async def test_git_pushes_and_clones(front_door: Entrance, tmp_path: Path) -> None:
    ssh = shlex.join(["ssh", *front_door.client.options(), "-C"])
    own = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    there = f"web@{HOST}:{tmp_path / 'there'}"
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data").write_bytes(os.urandom(MIB))
    script = f"""
        set -e
        git init -q --bare {tmp_path / "there"}
        cd {tmp_path / "work"}
        git init -q; git add data; git {shlex.join(own)} commit -q -m data
        git push -q {there} HEAD:refs/heads/main
        git clone -q -b main {there} {tmp_path / "clone"}
    """
    done = await run(["env", f"GIT_SSH_COMMAND={ssh}", "bash", "-c", script])
    assert (done.status, done.errors) == (0, "")
    sent, cloned = tmp_path / "work" / "data", tmp_path / "clone" / "data"
    assert cloned.read_bytes() == sent.read_bytes()
