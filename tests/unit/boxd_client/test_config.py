"""The settings of the client: arguments, environment, file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd_client import ConfigurationError
from boxd_client.config import Settings, config_path, load, read_file, write_file

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = Settings("https://boxes.example.com", "svc_file")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home without a configuration; the environment has no settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BOXD_URL", raising=False)
    monkeypatch.delenv("BOXD_API_KEY", raising=False)
    return tmp_path


def test_a_file_is_private_and_read_again() -> None:
    path = write_file(SETTINGS)
    assert (path, path.stat().st_mode & 0o777) == (config_path(), 0o600)
    assert load() == SETTINGS
    assert list(path.parent.iterdir()) == [path]


def test_what_precedes_what(monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(SETTINGS)
    monkeypatch.setenv("BOXD_API_KEY", "svc_env")
    assert load() == Settings(SETTINGS.url, "svc_env")
    monkeypatch.setenv("BOXD_URL", "http://127.0.0.1:8080/")
    assert load() == Settings("http://127.0.0.1:8080", "svc_env")
    assert load("http://[::1]:1", "svc_argument") == Settings("http://[::1]:1", "svc_argument")


def test_the_key_of_a_file_is_not_sent_to_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(SETTINGS)
    monkeypatch.setenv("BOXD_URL", "https://evil.example.com")
    with pytest.raises(ConfigurationError, match=r"no API key for https://evil\.example\.com"):
        load()


def test_a_file_that_others_may_read_is_refused() -> None:
    write_file(SETTINGS).chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load()


@pytest.mark.parametrize("text", [b"url = 5", b"\xff", b"url", b"x" * 70_000, b'key = ["a"]'])
def test_files_that_are_not_valid(text: bytes) -> None:
    path = write_file(SETTINGS)
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match="box login"):
        read_file()


def test_nothing_is_configured() -> None:
    with pytest.raises(ConfigurationError, match="BOXD_URL"):
        load()
    with pytest.raises(ConfigurationError, match="BOXD_API_KEY"):
        load("http://127.0.0.1")


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?y",
        "http://x\ny",
        "http://x:y",
    ],
)
def test_urls_that_are_not_valid(url: str) -> None:
    with pytest.raises(ConfigurationError):
        load(url, "svc_x")


@pytest.mark.parametrize("key", ["svc\nx", "svc x", "svc_ü", "x" * 600])
def test_keys_that_are_not_valid(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load("http://x", key)
    assert key not in str(caught.value)


def test_a_key_does_not_show_in_texts() -> None:
    assert "svc_file" not in repr(SETTINGS)
    assert os.environ.get("BOXD_API_KEY") is None
