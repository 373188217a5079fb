"""The command line: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd import cli
from boxd.config import Address, Config
from boxd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command line sets logging up; afterwards it is as before."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("boxd", "wrkfs"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def parsed(*flags: str) -> Config:
    """The configuration that `serve` gets for some flags."""
    return cli._config(cli._parser().parse_args(["serve", *flags]))


def test_defaults() -> None:
    config = parsed()
    assert config == Config()
    assert config.api_addr is None


def test_every_flag_arrives(tmp_path: Path) -> None:
    config = parsed(
        *("--state-dir", str(tmp_path), "--ssh-addr", "[::1]:22", "--api-addr", ":8080"),
        *("--meta-dsn", "postgresql://boxd@db/boxd", "--store-file", "store.json"),
        *("--default-image", "python", "--workspace-automount", "--grace", "0"),
        *("--idle-timeout", "90s", "--idle-reap", "1h30m", "--trusted-proxy", "10.0.0.1"),
        *("--admin-keys", "admins", "--verbose"),
    )
    assert config.state_dir == tmp_path
    assert (config.ssh_addr, str(config.ssh_addr)) == (Address("::1", 22), "[::1]:22")
    assert config.api_addr == Address("0.0.0.0", 8080)  # noqa: S104 - what an empty host means
    assert config.meta_dsn == "postgresql://boxd@db/boxd"
    assert str(config.store_file) == "store.json"
    assert config.default_image == "python"
    assert config.workspace_automount
    assert (config.grace, config.idle_timeout) == (timedelta(0), timedelta(seconds=90))
    assert config.idle_reap == timedelta(minutes=90)
    assert config.trusted_proxy == "10.0.0.1"
    assert str(config.admin_keys) == "admins"
    assert config.verbose


@pytest.mark.parametrize(
    "address", ["", "22", "host", "host:", "host:x", "host:65536", "::1:22", "[::1:22", "h:-1"]
)
def test_bad_address_names_the_flag(address: str) -> None:
    with pytest.raises(BadRequest, match="--ssh-addr"):
        parsed("--ssh-addr", address)


@pytest.mark.parametrize("flag", ["--grace", "--idle-timeout", "--idle-reap"])
def test_bad_duration_names_the_flag(flag: str) -> None:
    with pytest.raises(BadRequest, match=flag):
        parsed(flag, "soon")


@pytest.mark.parametrize(
    "dsn", ["postgresql://boxd:hunter2@db/boxd", "host=db password=hunter2", "host=db PASSWORD=x"]
)
def test_password_on_the_command_line_is_refused(dsn: str) -> None:
    with pytest.raises(BadRequest, match="--meta-dsn-file") as refused:
        parsed("--meta-dsn", dsn)
    assert "hunter2" not in str(refused.value)


def test_dsn_comes_from_a_private_file_only(tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://boxd:hunter2@db/boxd\n")
    file.chmod(0o644)
    with pytest.raises(BadRequest, match="chmod 600"):
        parsed("--meta-dsn-file", str(file))
    file.chmod(0o600)
    config = parsed("--meta-dsn-file", str(file))
    assert config.meta_dsn == "postgresql://boxd:hunter2@db/boxd"
    assert "hunter2" not in repr(config)
    with pytest.raises(BadRequest, match="not both"):
        parsed("--meta-dsn-file", str(file), "--meta-dsn", "postgresql://db/boxd")
    with pytest.raises(BadRequest, match="No such file"):
        parsed("--meta-dsn-file", str(tmp_path / "absent"))


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    assert cli.main(["serve", *state, "--grace", "soon"]) == 2
    assert "boxd: --grace" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        cli.main(["dance"])
    assert usage.value.code == 2
    assert cli.main(["down", *state]) == 0
    assert cli.main(["images", "build", "nope", *state]) == 2
    assert "'nope'" in capsys.readouterr().err


def test_refusal_to_serve_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    assert cli.main(["serve", "--state-dir", str(state), "--ssh-addr", "127.0.0.1:0"]) == 1
    assert f"remedy: chown root {state} && chmod 700 {state}" in capsys.readouterr().err


def test_doctor_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--state-dir", str(tmp_path / "state"), "--ssh-addr", "127.0.0.1:0")
    assert cli.main(["doctor", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CHECK", "FOUND", "REMEDY"]
    assert any(line.startswith("/dev/fuse") and " ok " in line for line in lines)


def test_images_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["images", "ls", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "BUILT", "DESCRIPTION"]
    assert lines[1].split()[:2] == ["debian", "no"]
