"""A service that is lost and comes back from its backup, with the clients of its users."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from boxd.backup import restoration
from boxd.backup.keyfile import make_key
from boxd.boxes.lifecycle.changes import REMADE
from tests.harness.mounts.drive import until
from tests.harness.service.backup_target import store_file
from tests.harness.service.daemon import STOP_S, Daemon, installation
from tests.harness.service.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer

pytestmark = pytest.mark.timeout(600)
ALIAS = "service.example.org"


@dataclass
class Kept:
    """Where archives go, and the flags that open them."""

    url: str
    flags: tuple[str, ...]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of the backups."""
    make_key(tmp_path / "backup.key")
    return tmp_path / "backup.key"


@pytest.fixture(params=["directory", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, key: Path) -> Kept:
    """An empty place for archives."""
    flags = ("--key-file", str(key))
    if request.param == "directory":
        (tmp_path / "kept").mkdir()
        return Kept(str(tmp_path / "kept"), flags)
    server: ObjectServer = request.getfixturevalue("objectserver")
    file = store_file(tmp_path, server)
    url = f"s3://{server.endpoint.bucket}/{tmp_path.name}"
    return Kept(url, (*flags, "--backup-store-file", str(file)))


@pytest.fixture
def fresh(image_rootfs: Path) -> Iterator[Daemon]:
    """Another machine, where nothing was served yet."""
    with installation(image_rootfs) as made:
        yield made


def strict_ssh(daemon: Daemon, user: User, known: Path, check: str) -> str:
    """Asks who the user is; the host key must be that of `known`, or is noted there."""
    done = subprocess.run(
        [
            *("ssh", "-F", "none", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", f"StrictHostKeyChecking={check}", "-o", f"UserKnownHostsFile={known}"),
            *("-o", f"HostKeyAlias={ALIAS}", "-o", "LogLevel=ERROR", "-i", str(user.key)),
            *("-p", str(daemon.ssh_port), "cli@127.0.0.1", "whoami --json"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=STOP_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["fingerprint"])


def test_service_comes_back_on_another_machine(
    daemon: Daemon, fresh: Daemon, kept: Kept, tmp_path: Path
) -> None:
    user = User(daemon, tmp_path)
    known = tmp_path / "known_hosts"
    owner = strict_ssh(daemon, user, known, "accept-new")
    user.ssh("dev", "echo old >/root/file; echo old >/wrk/file")
    user.ssh("ws1/web", "true")
    api_key = user.ssh("cli", "apikeys create laptop")
    assert user.get(api_key, "/v1/boxes")[0] == 200
    before = user.boxes()

    made = daemon.run("backup", "--to", kept.url, *kept.flags)
    assert made.returncode == 0, made.stderr
    secrets = secrets_of(daemon, api_key)
    assert not [one for one in secrets if one in made.stdout + made.stderr]

    restored = fresh.run("restore", "--from", kept.url, *kept.flags)
    assert restored.returncode == 0, restored.stderr
    assert "boxes, whose disks were lost" in restored.stderr
    assert fresh.left_overs() == []
    daemon.end(signal.SIGINT)
    try:
        fresh.start()
        there = copy(user)
        there.daemon = fresh
        assert strict_ssh(fresh, there, known, "yes") == owner
        after = there.boxes()
        assert {ref: box["id"] for ref, box in after.items()} == {
            ref: box["id"] for ref, box in before.items()
        }
        assert {(box["state"], box["detail"]) for box in after.values()} == {
            ("suspended", restoration.DETAIL)
        }
        status, body = there.get(api_key, "/v1/boxes")
        assert status == 200
        assert {str(box["id"]) for box in json.loads(body)} == {
            str(box["id"]) for box in after.values()
        }
        assert there.ssh("dev", "ls /root/file /wrk/file 2>&1 || echo fresh").endswith("fresh")
        assert there.boxes()["dev"]["detail"] == REMADE
        assert there.ssh("ws1/web", "echo new >/wrk/file && cat /wrk/file") == "new"
        assert there.get(api_key, "/v1/wrk/file?ws=ws1") == (200, b"new\n")
        again = fresh.run("restore", "--from", kept.url, *kept.flags)
        assert again.returncode == 1
        assert "is served by process" in again.stderr
        logs = fresh.log.read_text() + daemon.log.read_text() + restored.stderr
        assert not [one for one in secrets if one in logs]
    finally:
        daemon.start()


def secrets_of(daemon: Daemon, api_key: str) -> list[str]:
    """What nobody may read in logs or output: keys of the service, raw and in every spelling."""
    found = [api_key]
    for path in (daemon.state / "keys").iterdir():
        data = path.read_bytes()
        found += [data.hex(), base64.b64encode(data).decode()]
        if path.name != "master.key":
            found.append(data.decode().splitlines()[2])
    return found


def test_archive_has_no_secret_in_clear(daemon: Daemon, key: Path, tmp_path: Path) -> None:
    user = User(daemon, tmp_path)
    user.ssh("dev", "true")
    api_key = user.ssh("cli", "apikeys create canary")
    (tmp_path / "kept").mkdir()
    done = daemon.run("backup", "--to", str(tmp_path / "kept"), "--key-file", str(key))
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "kept").iterdir()
    data = archive.read_bytes()
    raw = [path.read_bytes() for path in (daemon.state / "keys").iterdir()]
    for secret in [*raw, *(one.encode() for one in secrets_of(daemon, api_key)), b"SHA256:"]:
        assert secret not in data
    assert user.ssh("cli", "whoami").encode() not in data


def test_backup_of_a_service_that_is_stopped(daemon: Daemon, key: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    flags = ("--to", str(tmp_path / "kept"), "--key-file", str(key))
    daemon.end(signal.SIGINT)
    try:
        done = daemon.run("backup", *flags)
        assert done.returncode == 0, done.stderr
        assert "setting" in done.stdout
        assert daemon.left_overs() == []
    finally:
        daemon.start()
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_scheduled_backups_tell_their_failures(daemon: Daemon, key: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    daemon.end(signal.SIGINT)
    flags = daemon.flags
    daemon.flags = [
        *(*flags, "--backup-url", str(kept), "--backup-key-file", str(key)),
        *("--backup-every", "1s", "--backup-keep", "2"),
    ]
    try:
        daemon.start()
        until(lambda: f"backup to {kept} failed: " in daemon.log.read_text())
        doctor = daemon.run("doctor")
        (line,) = [line for line in doctor.stdout.splitlines() if line.startswith("backup")]
        assert "warn" in line
        assert "no such directory" in line
        assert doctor.returncode == 0
        kept.mkdir()
        until(lambda: daemon.log.read_text().count("backup made") >= 4)
        until(lambda: len(list(kept.glob("boxd-*"))) == 2)
        assert "failed" not in daemon.run("doctor").stdout
    finally:
        daemon.flags = flags
        daemon.end(signal.SIGINT)
        (daemon.state / "backups.json").unlink()
        daemon.start()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("backup", "--to", "/tmp"), "--key-file"),
        (("backup", "--key-file", "KEY"), "--to"),
        (("backup", "--to", "/tmp", "--key-file", "KEY"), "no service yet"),
        (("restore", "--from", "/nonesuch", "--key-file", "KEY"), "no such directory"),
        (("backup", "--to", "s3://b/p", "--key-file", "KEY"), "--backup-store-file"),
        (("backup", "--new-key", "KEY"), "never overwritten"),
        (("restore", "--from", "/tmp"), "--key-file"),
        (("serve", "--ssh-addr", "127.0.0.1:0", "--backup-url", "/tmp"), "--backup-key-file"),
    ],
)
def test_wrong_flags_are_told(
    fresh: Daemon, key: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = fresh.run(*(str(key) if one == "KEY" else one for one in arguments))
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr
