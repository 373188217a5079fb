"""A volume's credentials that lead through proxies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from tests.harness.servers.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from wrkfs.config import VolumeConfig


def socket_of(dsn: str) -> Path:
    """Return the server's socket from a DSN of the tests' clusters."""
    query = parse_qs(urlsplit(dsn).query)
    return Path(query["host"][0]) / f".s.PGSQL.{query.get('port', ['5432'])[0]}"


def database_proxy(config: VolumeConfig, directory: Path) -> FaultProxy:
    """Return a proxy of the volume's database, on a socket in `directory`."""
    upstream = socket_of(config.meta_dsn)
    return FaultProxy(directory / upstream.name, upstream)


def through_socket(config: VolumeConfig, proxy: FaultProxy) -> VolumeConfig:
    """Return the volume with its database behind a proxy on a Unix socket."""
    assert isinstance(proxy.listen, Path)
    parts = urlsplit(config.meta_dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    query["host"] = str(proxy.listen.parent)
    return replace(config, meta_dsn=urlunsplit(parts._replace(query=urlencode(query))))


def through_addresses(config: VolumeConfig, *proxies: FaultProxy) -> VolumeConfig:
    """Return the volume with its database at the TCP addresses of several proxies."""
    parts = urlsplit(config.meta_dsn)
    places = ",".join(f"{proxy.listen[0]}:{proxy.listen[1]}" for proxy in proxies)  # type: ignore[index] # these listen on TCP
    netloc = parts.netloc.rpartition("@")[0] + "@" + places
    return replace(config, meta_dsn=urlunsplit(parts._replace(netloc=netloc, query="")))


def through_store(config: VolumeConfig, endpoint: str) -> VolumeConfig:
    """Return the volume with its objects behind a proxy."""
    return replace(config, store=replace(config.store, endpoint=endpoint))
