"""A service whose boxes mount their drives themselves: real boxes, database and object server."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from box_guest import protocol
from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.workspaces.box_drives import Grant
from boxd.workspaces.seal import Sealer
from tests.harness.loop import run
from tests.harness.mounts.drive import until
from tests.harness.service.daemon import open_daemon
from tests.harness.service.user import User
from wrkfs.config import VolumeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.service.daemon import Daemon

pytestmark = pytest.mark.timeout(300)

MOUNT_PID = "grep -l fuse-f[d] /proc/[0-9]*/cmdline | tr -dc '0-9\\n' | head -n 1"
"""Prints the pid of the mount process as the box sees it."""


INTRUDER = """
import asyncio, asyncpg, datetime, json, obstore
from wrkfs.data import exit_wait
from obstore.store import S3Store

DATABASE = "boxd"

async def tried(told, name, work):
    try:
        await work()
        told[name] = "ok"
    except Exception as error:
        told[name] = type(error).__name__

def port():
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A" and local.startswith("0100007F:"):
            return int(local.split(":")[1], 16)

async def rows(role, token, schema, database=DATABASE, late=False, **settings):
    dsn = f"postgresql://{role}:{token}@/{database}?host=/run/box-drive"
    connection = await asyncpg.connect(dsn, server_settings=settings)
    try:
        if late:
            try:
                endless = "SELECT count(*) FROM generate_series(1, 1000000000000)"
                await connection.execute(endless, timeout=0.5)
            except TimeoutError:
                pass
        await connection.fetchval(f"SELECT count(*) FROM {schema}.volume")
    finally:
        await connection.close()

async def objects(config, prefix, secret):
    store = S3Store(
        config["bucket"], endpoint=f"http://127.0.0.1:{port()}", region=config["region"],
        access_key_id=config["access_key"], secret_access_key=secret,
        virtual_hosted_style_request=False, client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=5)},
    )
    await obstore.put_async(store, f"{prefix}/intruder", b"x")
    await obstore.delete_async(store, f"{prefix}/intruder")

async def work(mine, other):
    told, token = {}, mine["meta_dsn"]
    role, store = mine["schema"], mine["store"]
    for name, call in {
        "own rows": lambda: rows(role, token, role),
        "other rows": lambda: rows(role, token, other["schema"]),
        "other role": lambda: rows(other["schema"], token, other["schema"]),
        "wrong token": lambda: rows(role, token[::-1], role),
        "other database": lambda: rows(role, token, role, database="postgres"),
        "replication": lambda: rows(role, token, role, replication="true"),
        "cancelled": lambda: rows(role, token, role, late=True),
        "own objects": lambda: objects(store, store["prefix"], store["secret_key"]),
        "other objects": lambda: objects(store, other["store"]["prefix"], store["secret_key"]),
        "wrong secret": lambda: objects(store, store["prefix"], store["secret_key"][::-1]),
    }.items():
        await tried(told, name, call)
    return told

def main(mine, other):
    exit_wait.wait_at_exit()
    print(json.dumps(asyncio.run(work(json.loads(mine), json.loads(other)))))
"""
"""Somebody in the box, on the runtime's own interpreter."""


@pytest.fixture(scope="module")
def daemon(image_rootfs: Path) -> Iterator[Daemon]:
    """A daemon of that kind."""
    with open_daemon(image_rootfs, flags=["--mount-in-box"]) as made:
        yield made


@pytest.fixture(scope="module")
def user(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> User:
    """A user of the daemon."""
    return User(daemon, tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def key(user: User) -> str:
    """An API key of the user."""
    return user.ssh("cli", "apikeys create laptop")


def info(user: User, box: str = "dev") -> dict[str, object]:
    """What the box says of its drive."""
    found: dict[str, object] = json.loads(user.ssh(box, "box-guest --json workspace info"))
    return found


def grant_file(daemon: Daemon, user: User, box: str) -> Path:
    """Where the daemon keeps what a box holds."""
    return daemon.state / "grants" / str(user.boxes()[box]["id"])


def grant(daemon: Daemon, user: User, box: str) -> Grant:
    """What a box holds."""
    file = grant_file(daemon, user, box)
    sealer = Sealer(daemon.state / "keys" / "master.key")
    return Grant.load(sealer.unseal(file.name, file.read_bytes()))


def keys(daemon: Daemon) -> set[str]:
    """The access keys that open anything."""
    found = run(EmbeddedObjectServer(daemon.state / "objects").credentials())
    return {access_key for access_key, _ in found}


def credentials(daemon: Daemon, volume_id: str) -> str:
    """The volume's own credentials, as the operator gets them."""
    file = daemon.state.parent / f"credentials-{volume_id}"
    if not file.exists():
        done = daemon.run("volumes", "credentials", volume_id, str(file))
        assert done.returncode == 0, done.stderr
    return file.read_text()


def volume(daemon: Daemon, user: User, box: str) -> VolumeConfig:
    """A volume as the box knows it: with its own token and credential."""
    held = grant(daemon, user, box)
    config = VolumeConfig.from_json(credentials(daemon, held.volume))
    store = replace(config.store, access_key=held.access_key, secret_key=held.secret.reveal())
    return replace(config, meta_dsn=held.token.reveal(), store=store)


def tried(user: User, box: str, mine: VolumeConfig, other: VolumeConfig) -> dict[str, str]:
    """What the stores say to somebody in the box who has all that the box has."""
    script = INTRUDER + f"main({mine.to_json()!r}, {other.to_json()!r})\n"
    python = [*protocol.AGENT_COMMAND[:-2], "-"]
    done = subprocess.run(
        user.command(box, " ".join(python)),
        input=script.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_it_is_the_same_drive(user: User, key: str) -> None:
    user.ssh("dev", "mkdir /wrk/d; head -c 6000000 /dev/urandom >/wrk/d/big; echo one >/wrk/file")
    assert "wrkfs" in user.ssh("dev", "grep ' /wrk ' /proc/mounts")
    assert user.get(key, "/v1/wrk/file") == (200, b"one\n")
    status, big = user.get(key, "/v1/wrk/d/big")
    assert (status, len(big)) == (200, 6_000_000)
    for number in range(5):
        assert user.put(key, "/v1/wrk/file", b"%d" % number) in (200, 201, 204)
        assert user.ssh("dev", "cat /wrk/file") == str(number)
        user.ssh("dev", f"echo again {number} >/wrk/file")
        assert user.get(key, "/v1/wrk/file") == (200, b"again %d\n" % number)
    assert user.ssh("other", "cat /wrk/file; cmp /wrk/d/big /wrk/d/big") == "again 4"
    told = info(user)
    assert (told["mounted"], told["mount"], told["restarts"]) == (True, "by the box itself", 0)


def test_removed_files_are_restored_in_the_box(user: User, key: str) -> None:
    user.ssh("dev", "mkdir /wrk/t; echo one >/wrk/t/f; rm -r /wrk/t")
    assert user.get(key, "/v1/wrk/t/f")[0] == 404
    restored = user.ssh("dev", "box-guest trash restore /wrk/t")
    assert restored == "/wrk/t restored; files: 1, directories: 1"
    assert user.ssh("other", "cat /wrk/t/f") == "one"
    assert user.get(key, "/v1/wrk/t/f") == (200, b"one\n")
    refused = user.ssh("dev", "su nobody -s /bin/sh -c 'box-guest trash ls'", status=1)
    assert "only root can list and restore removed files" in refused


def test_what_was_synced_outlives_its_mount(user: User, key: str) -> None:
    user.ssh("dev", "echo kept >/wrk/kept; sync /wrk/kept")
    before = int(str(info(user)["restarts"]))
    killed = user.ssh("dev", f"pid=$({MOUNT_PID}); kill -9 $pid; echo $pid")
    until(lambda: info(user)["restarts"] == before + 1 and info(user)["mounted"])
    assert user.ssh("dev", MOUNT_PID) not in ("", killed)
    assert user.ssh("dev", "cat /wrk/kept; grep -c ' /wrk ' /proc/mounts") == "kept\n1"
    user.ssh("dev", "echo new >>/wrk/kept")
    assert user.get(key, "/v1/wrk/kept") == (200, b"kept\nnew\n")


def test_the_box_holds_what_opens_its_volume_alone(daemon: Daemon, user: User) -> None:
    user.ssh("dev", "true")
    user.ssh("ws1/else", "echo other >/wrk/other")
    mine, other = volume(daemon, user, "dev"), volume(daemon, user, "ws1/else")
    assert mine.volume != other.volume
    told = tried(user, "dev", mine, other)
    assert told == {
        "own rows": "ok",
        "other rows": "InsufficientPrivilegeError",
        "other role": "InvalidAuthorizationSpecificationError",
        "wrong token": "InvalidPasswordError",
        "other database": "InvalidAuthorizationSpecificationError",
        "replication": "InvalidAuthorizationSpecificationError",
        "cancelled": "ok",
        "own objects": "ok",
        "other objects": "PermissionDeniedError",
        "wrong secret": told["wrong secret"],
    }
    assert told["wrong secret"] in ("PermissionDeniedError", "UnauthenticatedError")
    told = tried(user, "ws1/else", mine, other)
    assert told["own rows"] == "InvalidAuthorizationSpecificationError"


def test_secrets_are_nowhere_to_be_read(daemon: Daemon, user: User) -> None:
    user.ssh("dev", f"kill -9 $({MOUNT_PID})")
    until(lambda: info(user)["mounted"])
    held = grant(daemon, user, "dev")
    stored = json.loads(credentials(daemon, held.volume))
    secrets = [held.token.reveal(), held.secret.reveal(), stored["store"]["secret_key"]]
    secrets.append(unquote(urlsplit(stored["meta_dsn"]).password or ""))
    assert all(len(secret) >= 32 for secret in secrets)
    looked = "/proc/[0-9]*/cmdline /proc/[0-9]*/environ /run /etc /root /tmp /var/log /dev/shm"
    user.ssh("dev", "echo a canary >/run/canary")
    found = subprocess.run(
        user.command("dev", f"grep -rlaF -f - {looked} 2>/dev/null"),
        input="\n".join([*secrets, "a canary"]).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert found.stdout == b"/run/canary\n"
    boxes = list((daemon.state / "boxes").rglob("*"))
    kept = [daemon.log, *(daemon.state / "grants").iterdir(), *boxes]
    texts = [path.read_bytes() for path in kept if path.is_file() and path.stat().st_size < 1 << 24]
    assert not [secret for secret in secrets for text in texts if secret.encode() in text]


def test_commands_may_not_mount(user: User) -> None:
    bounding = int(user.ssh("dev", "grep CapBnd /proc/self/status").split()[1], 16)
    assert bounding & (1 << 21) == 0
    assert "superuser" in user.ssh("dev", "umount /wrk", status=32)
    assert "enied" in user.ssh("dev", "cat /proc/1/environ", status=1)


SLEEPER = """
cd /wrk
nohup sleep 1000 >/dev/null 2>&1 </dev/null &
echo $! >/root/sleeper
until grep -qx sleep /proc/$!/comm; do command sleep 0.05; done
"""
"""Leaves a process behind that has the drive in use, and is what it is meant to be by then."""


def test_it_is_taken_away_when_nobody_uses_it(daemon: Daemon, user: User, key: str) -> None:
    user.ssh("dev", "true")
    held = grant(daemon, user, "dev")
    assert held.access_key in keys(daemon)
    user.ssh("dev", SLEEPER)
    refused = user.ssh("dev", "box-guest workspace umount", status=1)
    assert "/wrk is in use by pid" in refused
    assert "(sleep)" in refused
    assert info(user)["mounted"]
    assert "mounts its drive itself" in user.ssh("cli", "suspend dev", status=1)
    user.ssh("dev", "kill $(cat /root/sleeper); echo late >/wrk/late")
    until(lambda: "umounted" not in user.ssh("dev", "box-guest workspace umount || echo umounted"))
    assert not info(user)["mounted"]
    assert user.get(key, "/v1/wrk/late") == (200, b"late\n")
    assert user.ssh("dev", f"ls -A /wrk; {MOUNT_PID}") == ""
    assert held.access_key not in keys(daemon)
    assert not grant_file(daemon, user, "dev").exists()
    assert "refused" in user.ssh("dev", "exec 3<>/dev/tcp/127.0.0.1/1", status=1)
    user.ssh("cli", "suspend dev")
    assert user.ssh("dev", "ls -A /wrk") == ""
    user.ssh("dev", "box-guest workspace mount")
    assert user.ssh("dev", "cat /wrk/late") == "late"
    assert grant(daemon, user, "dev").access_key != held.access_key


WRITER = """
cat > /root/NAME.sh <<'END'
exec 3>>/wrk/NAME
number=0
while true; do
  number=$((number + 1))
  echo $number >&3 || echo failed >/root/NAME.failed
  echo $number >/root/NAME.new
  mv /root/NAME.new /root/NAME
  sleep 0.1
done
END
nohup setsid sh /root/NAME.sh >/dev/null 2>&1 </dev/null &
while ! test -s /root/NAME; do sleep 0.1; done
"""
"""Writes numbers to the open file /wrk/NAME, and then to /root/NAME how far it has come."""


def test_it_goes_on_when_the_tunnel_is_back(daemon: Daemon, user: User, key: str) -> None:
    user.ssh("dev", WRITER.replace("NAME", "open"))
    pid, restarts = user.ssh("dev", MOUNT_PID), info(user)["restarts"]
    daemon.end(signal.SIGKILL)
    daemon.start()
    reached = int(user.ssh("dev", "cat /root/open"))
    until(lambda: int(user.get(key, "/v1/wrk/open")[1].split()[-1]) > reached)
    assert user.ssh("dev", f"cat /root/open.failed 2>/dev/null; {MOUNT_PID}") == pid
    assert info(user)["restarts"] == restarts


def test_a_box_that_is_removed_keeps_nothing_open(daemon: Daemon, user: User, key: str) -> None:
    user.ssh("gone", WRITER.replace("NAME", "gone"))
    held, file = grant(daemon, user, "gone"), grant_file(daemon, user, "gone")
    reached = int(user.ssh("gone", "cat /root/gone"))
    user.ssh("cli", "rm gone")
    assert held.access_key not in keys(daemon)
    assert not file.exists()
    written = [int(line) for line in user.get(key, "/v1/wrk/gone")[1].split()]
    assert written == list(range(1, len(written) + 1))
    assert written[-1] >= reached


def test_the_end_of_everything_takes_it_all_back(daemon: Daemon, user: User, key: str) -> None:
    user.ssh("dev", WRITER.replace("NAME", "last"))
    reached = int(user.ssh("dev", "cat /root/last"))
    daemon.end(signal.SIGINT)
    assert list((daemon.state / "grants").iterdir()) == []
    assert daemon.left_overs() == []
    daemon.start()
    assert int(user.get(key, "/v1/wrk/last")[1].split()[-1]) >= reached
    user.ssh("dev", "true")
    assert info(user)["mounted"]
