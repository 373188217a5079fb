"""The settings file: precedence, errors that name file and key, and secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.cli import main, settings_file
from boxd.cli.configuring import example
from boxd.cli.settings import config_of
from boxd.config import EXTERNAL_CACHE_SIZE, Address, Config, flags
from boxd.errors import BadRequest
from boxd.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

SECRET_DSN = "postgresql://boxd:hunter2@db.example/boxd"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "boxd.toml"
    path.touch(0o600)
    return path


def parsed(file: Path, *words: str, command: str = "serve") -> Config:
    """The configuration of a command with a settings file and flags."""
    return config_of(main.parser().parse_args([command, "--config", str(file), *words]))


def test_the_command_line_precedes_the_file_and_the_file_the_default(file: Path) -> None:
    file.write_text('ssh-addr = "127.0.0.1:1"\nidle-timeout = "7m"\nworkspace-automount = true\n')
    config = parsed(file, "--ssh-addr", "127.0.0.1:2")
    assert config.ssh_addr == Address("127.0.0.1", 2)
    assert config.idle_timeout.total_seconds() == 420
    assert config.workspace_automount
    assert config.idle_reap == Config().idle_reap


def test_the_default_file_is_used_if_it_exists(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_file, "DEFAULT_PATH", file)
    file.write_text("max-running = 3\n")
    assert config_of(main.parser().parse_args(["serve"])).max_running == 3
    file.unlink()
    assert config_of(main.parser().parse_args(["serve"])) == Config()


def test_switches_numbers_and_lists(file: Path) -> None:
    file.write_text(
        "no-drive = true\nverbose = false\nbackup-keep = 4\ncache-size = '1G'\n"
        'api-hosts = ["a.example", "b.example"]\ntrusted-sources = "192.0.2.0/24"\n'
    )
    config = parsed(file)
    assert (config.drive, config.verbose, config.backup_keep) == (False, False, 4)
    assert config.cache_size == 1 << 30
    assert config.api_hosts == ("a.example", "b.example")
    assert list(map(str, config.trusted_sources)) == ["192.0.2.0/24"]


def test_a_flag_of_the_same_field_replaces_the_setting(file: Path, tmp_path: Path) -> None:
    dsn = tmp_path / "dsn"
    dsn.touch(0o600)
    dsn.write_text(SECRET_DSN)
    file.write_text('meta-dsn = "postgresql://db.example/boxd"\n')
    assert parsed(file).meta_dsn == "postgresql://db.example/boxd"
    assert parsed(file, "--meta-dsn-file", str(dsn)).meta_dsn == SECRET_DSN


def test_a_store_file_sets_the_default_of_the_cache(file: Path) -> None:
    file.write_text('store-file = "/store.json"\n')
    assert parsed(file).cache_size == EXTERNAL_CACHE_SIZE


def test_a_command_uses_the_settings_that_it_takes(file: Path) -> None:
    file.write_text('state-dir = "/srv/boxd"\nmeta-dsn-file = "/absent"\n')
    assert str(parsed(file, command="openapi").state_dir) == "/srv/boxd"
    with pytest.raises(BadRequest, match="/absent"):
        parsed(file)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('ssh_addr = "127.0.0.1:1"', "there is no setting 'ssh_addr'; did you mean ssh-addr?"),
        ('"--ssh-addr" = "127.0.0.1:1"', "did you mean ssh-addr?"),
        ("zzz = 1", "there is no setting 'zzz'; `boxd serve --help` lists the flags"),
        ("[ssh]\naddr = 1", "'ssh' is a table; write all settings at the top"),
        ('ssh-addr = "here"', "ssh-addr"),
        ("ssh-addr = true", 'ssh-addr must be a string, for example ssh-addr = "HOST:PORT"'),
        ("ssh-addr = ['a']", "ssh-addr must be a string"),
        ("api-hosts = [1]", "api-hosts must be a list of strings"),
        ('verbose = "yes"', "verbose must be true or false"),
        ('backend = "lxc"', "backend must be one of: runc, docker"),
        ("max-running = -1", "max-running"),
        ("a = ", "is not valid TOML: Invalid value (at"),
        ('meta-dsn = "a"\nmeta-dsn-file = "/dev/null"', "give meta-dsn or meta-dsn-file, not both"),
        ("x" * 5000 + " = 1", "there is no setting 'xxxx"),
    ],
)
def test_errors_name_the_file_and_the_key(file: Path, text: str, error: str) -> None:
    file.write_text(text + "\n")
    with pytest.raises(BadRequest) as refusal:
        parsed(file)
    assert str(refusal.value).startswith(str(file))
    assert error in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("content", [b"\xff = 1", b"#" * (settings_file.MAX_SIZE + 1)])
def test_a_file_that_is_no_text_or_too_large(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BadRequest, match="TOML file of settings"):
        parsed(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"absent: No such file.*omit --config"):
        parsed(tmp_path / "absent")
    with pytest.raises(BadRequest, match="Is a directory"):
        parsed(tmp_path)


def test_a_secret_needs_a_private_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f'meta-dsn = "{SECRET_DSN}"\n')
    assert parsed(file).meta_dsn == SECRET_DSN
    assert main.main(["config", "--config", str(file)]) == 0
    table = capsys.readouterr().out
    assert "hunter2" not in table
    assert [line.split()[1:] for line in table.splitlines() if "meta-dsn " in line] == [
        ["(hidden)", str(file)]
    ]
    file.chmod(0o640)
    with pytest.raises(BadRequest, match=r"others can read.*chmod 600") as refusal:
        parsed(file)
    assert "hunter2" not in str(refusal.value)


def test_a_file_that_others_can_change_is_refused(file: Path) -> None:
    file.chmod(0o666)
    with pytest.raises(BadRequest, match="run: chmod go-w"):
        parsed(file)


def test_config_names_the_source_of_each_setting(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('trash = "1h"\nverbose = false\n')
    assert main.main(["config", "--config", str(file), "--ssh-addr", "127.0.0.1:9"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["trash", "1h", str(file)] in rows
    assert ["ssh-addr", "127.0.0.1:9", "command", "line"] in rows
    assert ["verbose", "false", "default"] in rows
    assert len(rows) == len(list(flags())) + 1


def test_the_example_has_every_flag_and_the_defaults(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["config", "--example"]) == 0
    text = capsys.readouterr().out
    assert text == example()
    file.write_text(text)
    packaged = Config(api_addr=Address("127.0.0.1", 8080), workspace_automount=True)
    assert parsed(file) == packaged
    kinds = {flag.key for _, flag in flags() if flag.default is not None and not flag.is_switch}
    settings = [line.removeprefix("# ") for line in text.splitlines() if " = " in line]
    settings = [line for line in settings if line.split()[0] in {flag.key for _, flag in flags()}]
    assert len(settings) == len(list(flags()))
    file.write_text(
        "".join(
            f"{line}\n"
            for line in settings
            if line.split()[0] not in kinds or line.startswith("api-addr")
        )
    )
    assert parsed(file) == packaged


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"boxd {VERSION}\n"
