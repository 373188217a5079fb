"""Flags set the configuration; errors name the flag and an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.cli import main
from boxd.cli.settings import config_of
from boxd.config import Address, Config
from boxd.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path


def parsed(*flags: str) -> Config:
    """The configuration that `serve` gets for some flags."""
    return config_of(main.parser().parse_args(["serve", *flags]))


def test_defaults() -> None:
    config = parsed()
    assert config == Config()
    assert config.api_addr is None


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [("0", 0), ("4096", 4096), ("1k", 1 << 10), ("500M", 500 << 20), ("20G", 20 << 30)],
)
def test_sizes(size: str, bytes_: int) -> None:
    assert parsed("--cache-size", size).cache_size == bytes_


def test_the_path_of_the_admin_keys_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed().admin_keys is None
    monkeypatch.chdir(tmp_path)
    assert parsed("--admin-keys", "admins").admin_keys == tmp_path / "admins"


def test_trusted_sources_are_networks() -> None:
    given = parsed("--trusted-sources", "192.0.2.0/24, 2001:db8::/32,198.51.100.7")
    assert list(map(str, given.trusted_sources)) == [
        "192.0.2.0/24",
        "2001:db8::/32",
        "198.51.100.7/32",
    ]


@pytest.mark.parametrize("text", ["192.0.2.1/24", "office", "192.0.2.0/33"])
def test_bad_networks_name_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--trusted-sources.*192\.0\.2\.0/24"):
        parsed("--trusted-sources", text)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("box.example.net", Address("box.example.net", 0)),
        ("10.0.0.1:22", Address("10.0.0.1", 22)),
        ("[2001:db8::1]", Address("2001:db8::1", 0)),
        ("[2001:db8::1]:2222", Address("2001:db8::1", 2222)),
    ],
)
def test_the_public_ssh_address(text: str, typed: Address) -> None:
    assert parsed("--ssh-host", text).ssh_host == typed


@pytest.mark.parametrize(
    "text",
    ["", ":22", "box:", "box:0", "box:65536", "a b", "-oProxy", "2001:db8::1", "box;id", "[]"],
)
def test_a_bad_public_ssh_address_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--ssh-host.*box\.example\.net"):
        parsed(f"--ssh-host={text}")


@pytest.mark.parametrize("number", ["0", "-5"])
def test_a_limit_that_lets_no_box_run_is_refused(number: str) -> None:
    assert parsed("--max-running=1").max_running == 1
    with pytest.raises(BadRequest, match=f"--max-running .*not {number}"):
        parsed(f"--max-running={number}")


@pytest.mark.parametrize("size", ["", "-1", "G", "1.5G", "1GB", "x", "1" * 13])
def test_bad_sizes_name_the_flag(size: str) -> None:
    with pytest.raises(BadRequest, match="--cache-size"):
        parsed(f"--cache-size={size}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90s", 90), ("24h", 86400), ("7d", 604800)]
)
def test_the_time_of_the_trash(text: str, seconds: int) -> None:
    assert parsed("--trash", text).trash_seconds == seconds


@pytest.mark.parametrize("text", ["", "-1", "5", "0s", "day", "11000d"])
def test_a_bad_time_for_the_trash_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--trash.*or 0"):
        parsed(f"--trash={text}")


def test_an_external_store_is_cached() -> None:
    assert parsed("--store-file", "store.json").cache_size == 4 << 30
    assert parsed("--store-file", "store.json", "--cache-size", "0").cache_size == 0


def test_the_domain_of_previews_is_folded() -> None:
    assert parsed("--preview-domain", "Preview.Example.NET").preview_domain == "preview.example.net"
    assert parsed("--preview-domain", "localhost").preview_domain == "localhost"


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "*.example.net", "example.net.", "example..net", "-a.net", "a-.net"),
        *("example.net:443", "https://example.net", "a b", "a_b.net", "\u0130.net", "10.0.0.1"),
        *("::1", "x" * 64 + ".net", ".".join(["x" * 60] * 4)),
    ],
)
def test_a_bad_preview_domain_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--preview-domain.*preview\.example\.net"):
        parsed(f"--preview-domain={text}")


def test_proxies_are_addresses_and_networks() -> None:
    assert parsed("--trusted-proxy", "10.0.0.1, 2001:db8::/64").trusted_proxy == (
        "10.0.0.1,2001:db8::/64"
    )


@pytest.mark.parametrize("text", ["", " , ", "*", "proxy.example.net", "10.0.0.1:80", "10.0.0.1/8"])
def test_a_bad_proxy_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match="--trusted-proxy"):
        parsed(f"--trusted-proxy={text}")


def test_hosts_of_the_api_are_names() -> None:
    assert parsed().api_hosts == ()
    assert parsed("--api-hosts", "API.example.com, boxd").api_hosts == ("api.example.com", "boxd")


@pytest.mark.parametrize(
    "text", ["https://a.example", "a.example:443", "*.a.example", "a..b", "a_b", "[::1]", "x" * 254]
)
def test_a_bad_host_name_names_the_flag(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--api-hosts.*api\.example\.com"):
        parsed(f"--api-hosts={text}")


def test_flags_set_their_fields(tmp_path: Path) -> None:
    config = parsed(
        *("--state-dir", str(tmp_path), "--ssh-addr", "[::1]:22", "--api-addr", ":8080"),
        *("--meta-dsn", "postgresql://boxd@db/boxd", "--store-file", "store.json"),
        *("--default-image", "python", "--workspace-automount", "--trusted-proxy", "10.0.0.1"),
        *("--ssh-host", "box.example.net:22"),
        *("--cache-dir", str(tmp_path / "cache"), "--cache-size", "1M"),
        *("--preview-domain", "preview.example.net", "--partitioned-cookies", "--verbose"),
    )
    assert config.state_dir == tmp_path
    assert (config.ssh_addr, str(config.ssh_addr)) == (Address("::1", 22), "[::1]:22")
    assert config.api_addr == Address("0.0.0.0", 8080)  # noqa: S104 - what an empty host means
    assert config.meta_dsn == "postgresql://boxd@db/boxd"
    assert str(config.store_file) == "store.json"
    assert config.default_image == "python"
    assert config.ssh_host == Address("box.example.net", 22)
    assert config.workspace_automount
    assert config.trusted_proxy == "10.0.0.1"
    assert config.preview_domain == "preview.example.net"
    assert config.partitioned_cookies
    assert (config.cache_dir, config.cache_size) == (tmp_path / "cache", 1 << 20)
    assert config.verbose


@pytest.mark.parametrize(
    "address", ["", "22", "host", "host:", "host:x", "host:65536", "::1:22", "[::1:22", "h:-1"]
)
def test_bad_address_names_the_flag(address: str) -> None:
    with pytest.raises(BadRequest, match="--ssh-addr"):
        parsed("--ssh-addr", address)


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


def test_flags_of_a_group_set_only_their_fields() -> None:
    config = parsed("--metrics-addr", "127.0.0.1:9464", "--log-format", "json")
    assert config.telemetry.metrics_addr == Address("127.0.0.1", 9464)
    assert config.telemetry.log_format == "json"
    assert config.telemetry.trace_endpoint is None
