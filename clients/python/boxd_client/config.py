"""Where the service is, and which API key to use: arguments, environment, configuration file.

The file is `~/.config/boxd/config.toml`, or `boxd/config.toml` in `$XDG_CONFIG_HOME`. It contains
`url` and `key`. Nobody but its owner may read it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from boxd_client.errors import ConfigurationError

URL_VARIABLE = "BOXD_URL"
KEY_VARIABLE = "BOXD_API_KEY"
MAX_FILE = 64 * 1024
_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_REMEDY = f"set {URL_VARIABLE} and {KEY_VARIABLE}, or run: box login"


@dataclass(frozen=True)
class Settings:
    """The URL of the service, without a trailing slash, and the API key."""

    url: str
    key: str = field(repr=False)


def load(url: str | None = None, key: str | None = None) -> Settings:
    """Return the settings. Arguments precede the environment, which precedes the file.

    Raises ConfigurationError if one is missing or cannot be valid.
    """
    url = url or os.environ.get(URL_VARIABLE)
    key = key or os.environ.get(KEY_VARIABLE)
    if not url or not key:
        # The key of the file belongs to the service of the file, and to no other one.
        file_url, file_key = read_file()
        if not url:
            url = file_url
        if not key and file_url is not None and url == file_url:
            key = file_key
    if not url:
        raise ConfigurationError(f"no URL of the service; {_REMEDY}")
    if not key:
        raise ConfigurationError(f"no API key for {url}; {_REMEDY}")
    return Settings(checked_url(url), checked_key(key))


def checked_url(url: str) -> str:
    """Return a URL without its trailing slash. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(f"{url!r} is not a URL") from None
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ConfigurationError(f"{url!r} is not a URL such as https://boxes.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError("the URL of the service has a user, a query or a fragment")
    return url.rstrip("/")


def checked_key(key: str) -> str:
    """Return an API key without white space around it. Raises ConfigurationError."""
    key = key.strip()
    if _KEY.fullmatch(key) is None:
        raise ConfigurationError("the API key has characters that no API key has")
    return key


def config_path() -> Path:
    """Return the path of the configuration file."""
    base = os.environ.get("XDG_CONFIG_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".config"
    return root / "boxd" / "config.toml"


def read_file() -> tuple[str | None, str | None]:
    """Return URL and key of the configuration file; None for what it does not have.

    Raises ConfigurationError if the file is not valid, or if others may read it.
    """
    path = config_path()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"others may read {path}; run: chmod 600 {path}")
    try:
        if len(text) > MAX_FILE:
            raise ValueError
        values = tomllib.loads(text.decode("utf-8"))
    except ValueError:
        raise ConfigurationError(f"{path} is not valid TOML; run: box login") from None
    url, key = values.get("url"), values.get("key")
    if not isinstance(url, str | None) or not isinstance(key, str | None):
        raise ConfigurationError(f"url and key in {path} are not texts; run: box login")
    return url, key


def write_file(settings: Settings) -> Path:
    """Write the configuration file with mode 0600, atomically, and return its path."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = f"url = {json.dumps(settings.url)}\nkey = {json.dumps(settings.key)}\n"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def colours_allowed() -> bool:
    """Return whether the user has not switched off colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
