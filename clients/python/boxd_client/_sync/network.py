"""Network connections whose reads and writes observe the deadline of the exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from boxd_client.deadline import remaining

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable


class DeadlineStream(httpcore.NetworkStream):
    """A connection that observes the deadline."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return bytes; empty: the peer closed. Raises httpcore.ReadTimeout."""
        limit = remaining(timeout, httpcore.ReadTimeout)
        return self._stream.read(max_bytes, limit)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all bytes. Raises httpcore.WriteTimeout."""
        limit = remaining(timeout, httpcore.WriteTimeout)
        self._stream.write(buffer, limit)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """Return the connection with TLS."""
        limit = remaining(timeout, httpcore.ConnectTimeout)
        return DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, limit))

    def get_extra_info(self, info: str) -> object:
        """Return a detail of the connection."""
        return self._stream.get_extra_info(info)


class DeadlineBackend(httpcore.NetworkBackend):
    """Opens connections that observe the deadline."""

    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a host."""
        limit = remaining(timeout, httpcore.ConnectTimeout)
        stream = self._backend.connect_tcp(host, port, limit, local_address, socket_options)
        return DeadlineStream(stream)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        """Connect to a Unix socket."""
        limit = remaining(timeout, httpcore.ConnectTimeout)
        stream = self._backend.connect_unix_socket(path, limit, socket_options)
        return DeadlineStream(stream)

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        self._backend.sleep(seconds)


class DeadlineTransport(httpx.HTTPTransport):
    """The transport of httpx, over connections that observe the deadline."""

    def __init__(self, verify: ssl.SSLContext, connections: int) -> None:
        super().__init__(verify=verify)
        # httpx has no parameter for the network of its transport.
        self._pool = httpcore.ConnectionPool(
            ssl_context=verify,
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=5.0,
            network_backend=DeadlineBackend(),
        )
