"""From flags to a `Config`."""

from __future__ import annotations

import os
import re
import stat
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from boxd.config import Address, Config
from boxd.errors import BadName, BadRequest
from boxd.names.duration import parse_duration

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

CACHE_SIZE = 4 << 30
"""Bytes of blocks that each mounted drive keeps on the disk before an external store. The embedded
one stands on the same disk: keeping its blocks twice is not worth it by default."""
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)")
_HOST = re.compile(
    r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9.-]{0,252})|\[(?P<six>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
MAX_DOMAIN = 253 - 64
"""Characters of a domain that has hosts below it whose first label is as long as one may be."""
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def config_of(arguments: argparse.Namespace) -> Config:
    """What a command line asks for. Raises BadRequest naming the wrong flag."""
    return Config(
        state_dir=arguments.state_dir.absolute(),
        ssh_addr=_address(arguments.ssh_addr, "--ssh-addr"),
        api_addr=_address(arguments.api_addr, "--api-addr") if arguments.api_addr else None,
        ssh_host=_host(arguments.ssh_host, "--ssh-host"),
        admin_keys=arguments.admin_keys and arguments.admin_keys.absolute(),
        trusted_sources=_networks(arguments.trusted_sources, "--trusted-sources"),
        meta_dsn=_meta_dsn(arguments.meta_dsn, arguments.meta_dsn_file),
        store_file=arguments.store_file,
        cache_dir=arguments.cache_dir and arguments.cache_dir.absolute(),
        cache_size=_cache_size(arguments.cache_size, arguments.store_file),
        trash_seconds=_trash(arguments.trash),
        default_image=arguments.default_image,
        backend=arguments.backend,
        docker_socket=arguments.docker_socket.absolute(),
        boxes_size=_maybe_size(arguments.boxes_size, "--boxes-size"),
        templates=not arguments.no_templates,
        idle_timeout=parse_duration(arguments.idle_timeout, "--idle-timeout"),
        idle_reap=parse_duration(arguments.idle_reap, "--idle-reap"),
        grace=None if arguments.grace is None else parse_duration(arguments.grace, "--grace"),
        max_running=_count(arguments.max_running, "--max-running"),
        max_memory=_maybe_size(arguments.max_memory, "--max-memory"),
        min_free=_maybe_size(arguments.min_free, "--min-free"),
        workspace_automount=arguments.workspace_automount,
        mount_in_box=arguments.mount_in_box,
        trusted_proxy=_proxies(arguments.trusted_proxy, "--trusted-proxy"),
        api_origins=_origins(arguments.api_origins, "--api-origins"),
        preview_domain=_domain(arguments.preview_domain, "--preview-domain"),
        partitioned_cookies=arguments.partitioned_cookies,
        backup_url=arguments.backup_url,
        backup_key_file=arguments.backup_key_file,
        backup_store_file=arguments.backup_store_file,
        backup_every=parse_duration(arguments.backup_every, "--backup-every"),
        backup_keep=arguments.backup_keep,
        verbose=arguments.verbose,
    )


def _origins(text: str, flag: str) -> tuple[str, ...]:
    """Origins as browsers write them."""
    found = []
    for one in filter(None, (part.strip().lower() for part in text.split(","))):
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or one != f"{parts.scheme}://{parts.netloc}":
            raise BadRequest(f"{flag} names origins such as https://app.example.com")
        found.append(one)
    return tuple(found)


def _address(text: str, flag: str) -> Address:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not plain or (":" in bare) != bracketed:
        raise BadRequest(f"{flag}: {text!r} is not HOST:PORT, for example 127.0.0.1:2222")
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104  an empty host means all addresses


def _networks(text: str, flag: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())
    except ValueError as error:
        raise BadRequest(f"{flag}: {error}; give networks, for example 192.0.2.0/24") from None


def _proxies(text: str, flag: str) -> str:
    """Addresses and networks; a name, or `*` for everybody, would be trusted by mistake."""
    networks = _networks(text, flag)
    if not networks:
        raise BadRequest(f"{flag}: it is empty; give the proxy's address, for example 127.0.0.1")
    return ",".join(each.strip() for each in text.split(",") if each.strip())


def _domain(text: str | None, flag: str) -> str | None:
    """A DNS name below which there is room for one more label."""
    if text is None:
        return None
    domain = text.lower()
    labels = domain.split(".")
    good = all(_LABEL.fullmatch(label) for label in labels) and len(domain) <= MAX_DOMAIN
    if not good or labels[-1].isdigit():
        raise BadRequest(
            f"{flag}: {text!r} is not a domain of at most {MAX_DOMAIN} characters, without '*.' and"
            " port, for example preview.example.net"
        )
    return domain


def _host(text: str | None, flag: str) -> Address | None:
    """A name or address with or without a port; 0: without."""
    if text is None:
        return None
    match = _HOST.fullmatch(text)
    port = int(match["port"] or 0) if match else -1
    if match is None or not 0 <= port <= 65535 or (match["port"] and not port):
        raise BadRequest(f"{flag}: {text!r} is not NAME or NAME:PORT, for example box.example.net")
    return Address(match["name"] or match["six"], port)


def _maybe_size(text: str | None, flag: str) -> int | None:
    return None if text is None else _size(text, flag)


def _count(number: int | None, flag: str) -> int | None:
    if number is not None and number < 1:
        raise BadRequest(f"{flag} is a number of boxes from 1 on, not {number}")
    return number


def _trash(text: str) -> int:
    if text == "0":
        return 0
    try:
        return int(parse_duration(text, "--trash").total_seconds())
    except BadName as error:
        raise BadRequest(f"{error}, or 0") from None


def _cache_size(text: str | None, store_file: Path | None) -> int:
    if text is None:
        return 0 if store_file is None else CACHE_SIZE
    return _size(text, "--cache-size")


def _size(text: str, flag: str) -> int:
    match = _SIZE.fullmatch(text.upper())
    if match is None:
        raise BadRequest(f"{flag}: {text!r} is not a size, for example 500M, 20G or 0")
    return int(match[1]) << _UNITS[match[2]]


def _meta_dsn(dsn: str | None, file: Path | None) -> str | None:
    if dsn is not None and file is not None:
        raise BadRequest("give --meta-dsn or --meta-dsn-file, not both")
    if file is not None:
        return _private_text(file)
    if dsn is not None and (urlsplit(dsn).password or "password" in dsn.lower()):
        raise BadRequest(
            "--meta-dsn must hold no password, as everybody can read command lines: "
            "write the DSN into a file of mode 0600 and give --meta-dsn-file FILE"
        )
    return dsn


def _private_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise BadRequest(f"{path} is readable by others; run: chmod 600 {path}")
            return file.read().strip()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
