"""Groups of flags, their help and their defaults. A command takes the groups that matter to it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.config import BACKENDS, BACKUPS_KEPT, DEFAULT_IMAGE, DEFAULT_STATE_DIR, DOCKER_SOCKET

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """To which a group of commands adds its own."""

SSH_ADDR = "127.0.0.1:2222"
TRUSTED_PROXY = "127.0.0.1"
DEFAULTS = {
    "state_dir": DEFAULT_STATE_DIR,
    "verbose": False,
    "ssh_addr": SSH_ADDR,
    "api_addr": None,
    "ssh_host": None,
    "admin_keys": None,
    "trusted_sources": "",
    "meta_dsn": None,
    "meta_dsn_file": None,
    "store_file": None,
    "cache_dir": None,
    "cache_size": None,
    "trash": "24h",
    "default_image": DEFAULT_IMAGE,
    "backend": BACKENDS[0],
    "docker_socket": DOCKER_SOCKET,
    "boxes_size": None,
    "no_templates": False,
    "idle_timeout": "2m",
    "idle_reap": "3h",
    "grace": None,
    "max_running": None,
    "max_memory": None,
    "min_free": None,
    "workspace_automount": False,
    "mount_in_box": False,
    "trusted_proxy": TRUSTED_PROXY,
    "preview_domain": None,
    "api_origins": "",
    "partitioned_cookies": False,
    "backup_url": None,
    "backup_key_file": None,
    "backup_store_file": None,
    "backup_every": "24h",
    "backup_keep": BACKUPS_KEPT,
}
"""Of all flags, also of those that a command does not take: every command has a whole `Config`."""
_CACHE = "4G with --store-file, else 0"


class Flags:
    """The groups. Each is a parent of the parsers of commands."""

    def __init__(self) -> None:
        self.common = _common()
        self.servers = _servers()
        self.listeners = _listeners()
        self.serving = _serving()
        self.backups = _backups()

    @property
    def starting(self) -> list[argparse.ArgumentParser]:
        """What says how a service starts."""
        return [self.common, self.listeners, self.servers]

    @property
    def everything(self) -> list[argparse.ArgumentParser]:
        """What `serve` takes."""
        return [*self.starting, self.serving, self.backups]


def count(text: str) -> int:
    """A number of one or more. Raises ValueError, which argparse tells."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _group() -> argparse.ArgumentParser:
    """An empty one. What is not given is not set, so that the default of all counts."""
    return argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)


def _common() -> argparse.ArgumentParser:
    group = _group()
    add = group.add_argument
    add("--state-dir", type=Path, metavar="DIR", help=f"all state ({DEFAULT_STATE_DIR})")
    add("--verbose", action="store_true", help="log more")
    return group


def _servers() -> argparse.ArgumentParser:
    group = _group()
    add = group.add_argument
    add("--meta-dsn", metavar="DSN", help="PostgreSQL, without password; default: embedded")
    add("--meta-dsn-file", type=Path, metavar="FILE", help="file (mode 0600) with the DSN")
    add("--store-file", type=Path, metavar="FILE", help="JSON (0600) naming an S3; else embedded")
    add("--backend", choices=BACKENDS, help=f"what makes the boxes ({BACKENDS[0]})")
    add("--docker-socket", type=Path, metavar="PATH", help=f"of its engine ({DOCKER_SOCKET})")
    return group


def _listeners() -> argparse.ArgumentParser:
    group = _group()
    add = group.add_argument
    add("--ssh-addr", metavar="HOST:PORT", help=f"SSH ({SSH_ADDR})")
    add("--api-addr", metavar="HOST:PORT", help="HTTP API; not served when absent")
    add("--default-image", metavar="NAME", help=f"image of specs without one ({DEFAULT_IMAGE})")
    return group


def _serving() -> argparse.ArgumentParser:
    group = _group()
    add = group.add_argument
    add("--idle-timeout", metavar="DURATION", help="unused boxes are suspended after it (2m)")
    add("--idle-reap", metavar="DURATION", help="suspended boxes are removed after it (3h)")
    add("--grace", metavar="DURATION", help="boxes stay awake so long after a detach (none)")
    add("--boxes-size", metavar="SIZE", help="disk for all boxes; 0: without limits of their own")
    add("--max-running", type=int, metavar="N", help="boxes of all owners that run at once")
    add("--max-memory", metavar="SIZE", help="sum of the memory caps of running boxes")
    add("--min-free", metavar="SIZE", help="disk space that stays free; less: no box starts")
    add("--no-templates", action="store_true", help="start every new box from nothing")
    add("--workspace-automount", action="store_true", help="/wrk in every new box")
    add("--mount-in-box", action="store_true", help="boxes mount /wrk themselves: see SECURITY.md")
    add("--cache-dir", type=Path, metavar="DIR", help="blocks of drives; default: in the state")
    add("--cache-size", metavar="SIZE", help=f"of each drive, for example 20G; 0: none ({_CACHE})")
    add("--trash", metavar="DURATION", help="removed files come back so long; 0: never (24h)")
    add("--ssh-host", metavar="NAME[:PORT]", help="what users type for SSH; default: the address")
    add("--admin-keys", type=Path, metavar="FILE", help="public keys that open ssh sudo@...")
    add("--trusted-sources", metavar="NET,...", help="networks without limits of strangers at SSH")
    add("--trusted-proxy", metavar="IP", help=f"whose forwarded headers count ({TRUSTED_PROXY})")
    add("--preview-domain", metavar="DOMAIN", help="ports of boxes answer at BOX-PORT.DOMAIN too")
    add("--partitioned-cookies", action="store_true", help="of previews: one for each framing site")
    add("--api-origins", metavar="ORIGIN,...", help="of pages that may use MCP: https://HOST")
    add("--backup-url", metavar="DIR|s3://BUCKET/PREFIX", help="backs the control plane up there")
    add("--backup-every", metavar="DURATION", help="time between two backups (24h)")
    add("--backup-keep", type=count, metavar="N", help=f"archives that stay ({BACKUPS_KEPT})")
    return group


def _backups() -> argparse.ArgumentParser:
    group = _group()
    add = group.add_argument
    flags = ("--backup-key-file", "--key-file")
    add(*flags, type=Path, metavar="FILE", help="encrypts backups (0600)")
    add("--backup-store-file", type=Path, metavar="FILE", help="as --store-file, for s3:// backups")
    return group
