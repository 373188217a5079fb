"""`box login|config`."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING

from boxd_client._sync.client import Client
from boxd_client.cli.output import print_json
from boxd_client.config import Settings, checked_key, checked_url, config_path, load, write_file
from boxd_client.errors import ConfigurationError

if TYPE_CHECKING:
    from boxd_client.cli.context import Context


def login(context: Context) -> int:
    """Ask for the API key, check it with the service, and store it."""
    url = checked_url(context.args.url)
    if sys.stdin.isatty():
        key = getpass.getpass("API key (ssh cli@HOST apikeys create NAME): ")
    else:
        key = sys.stdin.readline()
    if not key.strip():
        raise ConfigurationError("no API key on standard input")
    settings = Settings(url, checked_key(key))
    with Client(settings.url, settings.key) as client:
        boxes = len(client.boxes.list())
    path = write_file(settings)
    if context.json:
        print_json({"url": settings.url, "file": str(path), "boxes": boxes})
    else:
        sys.stdout.write(f"stored in {path}; the key reaches {boxes} boxes\n")
    return 0


def config(context: Context) -> int:
    """Show which service and key the command uses. The key itself is not shown."""
    settings = load()
    values = {
        "url": settings.url,
        "key": f"...{settings.key[-4:]}",
        "file": str(config_path()),
    }
    if context.json:
        print_json(values)
    else:
        sys.stdout.write("".join(f"{name}: {value}\n" for name, value in values.items()))
    return 0
