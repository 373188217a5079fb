"""The file of administrators' keys: accepted lines, rejected lines, and reloads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncssh
import pytest

from boxd.embedded.files import SETTINGS_MAX, read_settings
from boxd.errors import BadRequest
from boxd.ssh.connection.admin_keys import AdminKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs


def key_line(kind: str = "ssh-ed25519", **options: int) -> tuple[str, str]:
    """Return the line of a new public key, and its owner."""
    key = asyncssh.generate_private_key(kind, "a comment", **options)
    return key.export_public_key().decode().strip(), key.get_fingerprint("sha256")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return an empty file that only its owner can write to."""
    path = tmp_path / "admins"
    path.touch(mode=0o600)
    return path


def test_keys_of_every_safe_kind_are_administrators(file: Path) -> None:
    kinds = [key_line(), key_line("ecdsa-sha2-nistp256"), key_line("ssh-rsa", key_size=2048)]
    bare = " ".join(kinds[0][0].split()[:2])
    text = "\r\n".join(["# operators", "", *(text for text, _ in kinds[1:]), f"  {bare}\t"])
    file.write_text(text)
    keys = AdminKeys(file)
    assert kinds[0][1] not in keys
    keys.load()
    assert all(owner in keys for _, owner in kinds)
    assert key_line()[1] not in keys
    file.write_bytes(kinds[0][0].encode() + b" a \xff comment\n")
    keys.load()
    assert kinds[0][1] in keys
    assert kinds[1][1] not in keys


def test_without_a_file_there_are_no_administrators() -> None:
    keys = AdminKeys()
    keys.load()
    assert key_line()[1] not in keys


CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com"


def reader(file: Path) -> Callable[[], Awaitable[bytes]]:
    """Return the function that reads the file again."""

    async def read() -> bytes:
        return read_settings(file, "--admin-keys")

    return read


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (f'command="ls" {key_line()[0]}', "options before a key are not supported"),
        (f"restrict {key_line()[0]}", "options before a key are not supported"),
        (key_line("ssh-rsa", key_size=1024)[0], "RSA key needs at least 2048 bits"),
        (key_line("ssh-dss")[0], "does not start with a supported key type"),
        (f"{CERTIFICATE} AAAA someone", "certificates are not supported"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "does not start with a supported key type"),
        ("ssh-ed25519", "cannot be read"),
        ("ssh-ed25519 AAAA", "cannot be read"),
        ("ssh-ed25519 ====", "cannot be read"),
        (key_line()[0].replace("ssh-ed25519 ", "ssh-rsa "), "the key"),
        (key_line()[0].replace(" a comment", "AAAA"), "cannot be read"),
        ("\x00\xff", "does not start with a supported key type"),
    ],
    # The keys are new in each process that collects tests, so the ids must not contain them.
    ids=[
        *("options", "restrict", "short", "dsa", "certificate", "private", "kind alone", "no data"),
        *("no base64", "another kind", "too long", "no text"),
    ],
)
async def test_a_rejected_line_is_named_and_not_quoted(
    bad: str, message: str, file: Path, assert_logs: AssertLogs
) -> None:
    good, owner = key_line()
    file.write_text(good)
    keys = AdminKeys(file)
    keys.load()
    file.write_text(f"{good}\n\n{bad}\n{key_line()[0]}")
    with pytest.raises(BadRequest) as caught:
        AdminKeys(file).load()
    assert f"--admin-keys: {file}, line 3: " in str(caught.value)
    assert message in str(caught.value)
    assert bad.split()[-1] not in str(caught.value), "the path may name a file with secrets"
    with assert_logs("ERROR.*previous ones stay valid.*line 3"):
        await keys.reload(reader(file))
    assert owner in keys


def test_certificates_are_rejected(file: Path) -> None:
    user, authority = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    certificate = authority.generate_user_certificate(user, "someone").export_certificate()
    file.write_bytes(certificate)
    with pytest.raises(BadRequest, match="line 1: certificates are not supported"):
        AdminKeys(file).load()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_rejected(mode: int, file: Path) -> None:
    file.write_text(key_line()[0])
    file.chmod(mode)
    with pytest.raises(BadRequest, match=f"chmod go-w {file}"):
        AdminKeys(file).load()


def test_a_file_of_another_user_is_rejected(file: Path) -> None:
    file.write_text(key_line()[0])
    os.chown(file, 4711, 4711)
    with pytest.raises(BadRequest, match=f"chown root {file}"):
        AdminKeys(file).load()


def test_other_paths_are_rejected(file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No such file"):
        AdminKeys(tmp_path / "absent").load()
    with pytest.raises(BadRequest, match="Is a directory"):
        AdminKeys(tmp_path).load()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(BadRequest, match="is not a regular file"):
        AdminKeys(tmp_path / "pipe").load()
    file.write_text("#" * (SETTINGS_MAX + 1))
    with pytest.raises(BadRequest, match="longer than"):
        AdminKeys(file).load()


async def test_reload_uses_the_current_file_or_keeps_the_old_keys(
    file: Path, assert_logs: AssertLogs
) -> None:
    (old_line, old_owner), (new_line, new_owner) = key_line(), key_line()
    file.write_text(old_line)
    keys = AdminKeys(file)
    keys.load()
    file.write_text(new_line)
    await keys.reload(reader(file))
    assert old_owner not in keys
    assert new_owner in keys
    file.unlink()
    with assert_logs("previous ones stay valid.*No such file"):
        await keys.reload(reader(file))
    assert new_owner in keys
    file.touch(mode=0o600)
    await keys.reload(reader(file))
    assert new_owner not in keys
