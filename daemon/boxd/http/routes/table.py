"""Protocol adapter only. The table of all routes.

JSON routes are functions with a description each. Exec, /wrk, terminals, ports and MCP stream in
both directions: each is a plain ASGI endpoint with the descriptions of its operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.middleware.cors import Origins
from boxd.http.middleware.hosts import ServedHosts
from boxd.http.proxy import proxy
from boxd.http.routes import (
    catalogs,
    copies,
    health,
    mcp,
    reference,
    surfaces,
    tls_ask,
    trash,
    wrk,
)
from boxd.http.routes.account import (
    agent,
    asks,
    figures,
    keys,
    profiles,
    secrets,
    workspaces,
)
from boxd.http.routes.boxes import boxes, files, ports, power, shares, snapshots
from boxd.http.routes.commands import background, batch, command_streams, term, watch
from boxd.http.routes.commands import exec as exec_api
from boxd.http.routes.route import StreamRoute

if TYPE_CHECKING:
    from boxd.config import Config
    from boxd.http.proxy.proxy import ProxyEndpoint
    from boxd.http.routes.mcp import McpService
    from boxd.operations import Operations

JSON_ROUTES = (
    *health.ROUTES,
    *boxes.ROUTES,
    *power.ROUTES,
    *ports.ROUTES,
    *snapshots.ROUTES,
    *shares.ROUTES,
    *figures.ROUTES,
    *workspaces.ROUTES,
    *profiles.ROUTES,
    *secrets.ROUTES,
    *keys.ROUTES,
    *agent.ROUTES,
    *asks.ROUTES,
    *background.ROUTES,
    *catalogs.ROUTES,
    *surfaces.ROUTES,
    *trash.ROUTES,
    *copies.ROUTES,
    *tls_ask.ROUTES,
    *reference.ROUTES,
)
"""Every JSON route."""
STREAM_OPERATIONS = {
    exec_api.TEMPLATE: exec_api.OPERATIONS,
    batch.TEMPLATE: batch.OPERATIONS,
    files.TEMPLATE: files.OPERATIONS,
    command_streams.OUTPUT_TEMPLATE: command_streams.OUTPUT_OPERATIONS,
    command_streams.STDIN_TEMPLATE: command_streams.STDIN_OPERATIONS,
    watch.TEMPLATE: watch.OPERATIONS,
    wrk.TEMPLATE: wrk.OPERATIONS,
    proxy.TEMPLATE: proxy.OPERATIONS,
    term.TEMPLATE: term.OPERATIONS,
    mcp.TEMPLATE: mcp.OPERATIONS,
}
"""The descriptions of all streaming operations: template -> method in lower case -> description."""


def stream_routes(
    operations: Operations,
    config: Config,
    proxy_endpoint: ProxyEndpoint,
    mcp_service: McpService | None,
) -> list[StreamRoute]:
    """Return the streaming routes of one server. `mcp_service` None: MCP is not served."""
    reads = ("GET", "HEAD")
    methods = (*reads, "PUT", "DELETE")
    routes = [
        StreamRoute(batch.TEMPLATE, batch.BatchEndpoint(operations), ("POST",)),
        StreamRoute(exec_api.TEMPLATE, exec_api.ExecEndpoint(operations), ("POST",)),
        StreamRoute(files.TEMPLATE, files.BoxFilesEndpoint(operations), files.METHODS),
        StreamRoute(
            command_streams.OUTPUT_TEMPLATE, command_streams.OutputEndpoint(operations), reads
        ),
        StreamRoute(
            command_streams.STDIN_TEMPLATE, command_streams.StdinEndpoint(operations), ("POST",)
        ),
        StreamRoute(watch.TEMPLATE, watch.WatchEndpoint(operations), reads),
        StreamRoute(wrk.TEMPLATE, wrk.WrkEndpoint(operations), methods),
        StreamRoute(term.TEMPLATE, term.TermEndpoint(operations), reads, socket=True),
        StreamRoute(proxy.TEMPLATE, proxy_endpoint, socket=True),
    ]
    if mcp_service is not None:
        routes.append(_mcp_route(operations, mcp_service, config))
    return routes


def _mcp_route(operations: Operations, mcp_service: McpService, config: Config) -> StreamRoute:
    origins = Origins(config.api_origins)
    hosts = ServedHosts(config.served_names)
    endpoint = mcp.McpEndpoint(operations, mcp_service, origins, hosts)
    return StreamRoute(mcp.TEMPLATE, endpoint, mcp.METHODS, socket=True, origins=origins)
