"""The file of administrators' keys: what is taken, what is refused, what a second look changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.errors import BadRequest
from boxd.ssh.connection.admin_keys import MAX_BYTES, AdminKeys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs


def line(kind: str = "ssh-ed25519", **how: int) -> tuple[str, str]:
    """A line of a new public key, and its owner."""
    key = asyncssh.generate_private_key(kind, "a comment", **how)
    return key.export_public_key().decode().strip(), key.get_fingerprint("sha256")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only its owner can write to."""
    path = tmp_path / "admins"
    path.touch(mode=0o600)
    return path


def test_keys_of_every_safe_kind_are_administrators(file: Path) -> None:
    kinds = [line(), line("ecdsa-sha2-nistp256"), line("ssh-rsa", key_size=2048)]
    bare = " ".join(kinds[0][0].split()[:2])
    text = "\r\n".join(["# who looks after it", "", *(one for one, _ in kinds[1:]), f"  {bare}\t"])
    file.write_text(text)
    keys = AdminKeys(file)
    assert kinds[0][1] not in keys
    keys.load()
    assert all(owner in keys for _, owner in kinds)
    assert line()[1] not in keys
    file.write_bytes(kinds[0][0].encode() + b" a \xff comment\n")
    keys.load()
    assert kinds[0][1] in keys
    assert kinds[1][1] not in keys


def test_without_a_file_nobody_is_one() -> None:
    keys = AdminKeys()
    keys.load()
    assert line()[1] not in keys


CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (f'command="ls" {line()[0]}', "options before a key are not supported"),
        (f"restrict {line()[0]}", "options before a key are not supported"),
        (line("ssh-rsa", key_size=1024)[0], "RSA key needs at least 2048 bits"),
        (line("ssh-dss")[0], "does not start with a supported key type"),
        (f"{CERTIFICATE} AAAA someone", "certificates are not supported"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "does not start with a supported key type"),
        ("ssh-ed25519", "cannot be read"),
        ("ssh-ed25519 AAAA", "cannot be read"),
        ("ssh-ed25519 ====", "cannot be read"),
        (line()[0].replace("ssh-ed25519 ", "ssh-rsa "), "the key"),
        (line()[0].replace(" a comment", "AAAA"), "cannot be read"),
        ("\x00\xff", "does not start with a supported key type"),
    ],
    # Made anew each time, the keys would give each process that collects tests other names.
    ids=[
        *("options", "restrict", "short", "dsa", "certificate", "private", "kind alone", "no data"),
        *("no base64", "another kind", "too long", "no text"),
    ],
)
def test_a_line_that_is_not_taken_is_named(
    bad: str, said: str, file: Path, assert_logs: AssertLogs
) -> None:
    good, owner = line()
    file.write_text(good)
    keys = AdminKeys(file)
    keys.load()
    file.write_text(f"{good}\n\n{bad}\n{line()[0]}")
    with pytest.raises(BadRequest) as refused:
        AdminKeys(file).load()
    assert f"--admin-keys: {file}, line 3: " in str(refused.value)
    assert said in str(refused.value)
    assert bad.split()[-1] not in str(refused.value), "the file may be another one, with secrets"
    with assert_logs("ERROR.*previous ones stay valid.*line 3"):
        keys.reload()
    assert owner in keys


def test_a_certificate_is_refused_as_such(file: Path) -> None:
    user, authority = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    made = authority.generate_user_certificate(user, "someone").export_certificate()
    file.write_bytes(made)
    with pytest.raises(BadRequest, match="line 1: certificates are not supported"):
        AdminKeys(file).load()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_refused(mode: int, file: Path) -> None:
    file.write_text(line()[0])
    file.chmod(mode)
    with pytest.raises(BadRequest, match=f"chmod go-w {file}"):
        AdminKeys(file).load()


def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    file.write_text(line()[0])
    os.chown(file, 4711, 4711)
    with pytest.raises(BadRequest, match=f"chown root {file}"):
        AdminKeys(file).load()


def test_what_is_no_readable_file_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No such file"):
        AdminKeys(tmp_path / "absent").load()
    with pytest.raises(BadRequest, match="Is a directory"):
        AdminKeys(tmp_path).load()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(BadRequest, match="is not a regular file"):
        AdminKeys(tmp_path / "pipe").load()
    file.write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(BadRequest, match="longer than"):
        AdminKeys(file).load()


def test_a_second_look_takes_what_stands_there_now(file: Path, assert_logs: AssertLogs) -> None:
    (first, one), (second, two) = line(), line()
    file.write_text(first)
    keys = AdminKeys(file)
    keys.load()
    file.write_text(second)
    keys.reload()
    assert one not in keys
    assert two in keys
    file.unlink()
    with assert_logs("previous ones stay valid.*No such file"):
        keys.reload()
    assert two in keys
    file.touch(mode=0o600)
    keys.reload()
    assert two not in keys
