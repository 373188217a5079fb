"""The methods of the protocol, on the library's low-level server. Each connection has a server.

A server knows no transport. Its methods translate between the protocol and the session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from boxd.boxes.limits.budgets.results import Share
from boxd.errors import BoxdError, InvalidKey, NotFound
from boxd.mcp import resources
from boxd.mcp.messages.encoding import READABLE, encode_document
from boxd.mcp.sessions.session import MAX_LISTENS, InternalError
from boxd.mcp.sessions.watch import MAX_WATCHED, PendingUpdates, Watch
from boxd.mcp.tools.hints import with_address_hint, with_tool_names
from boxd.mcp.tools.params import BadArguments, schema_of
from boxd.mcp.tools.registry import BY_NAME, TOOLS
from boxd.names.words import shown
from boxd.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from boxd.mcp.library.unsent_results import UnsentResults
    from boxd.mcp.sessions.session import Session
    from boxd.mcp.tools.tool import Tool

    Context = ServerRequestContext[Any, Any]

NAME = "boxd"
INSTRUCTIONS = (
    "Boxes are isolated machines. Create a box with box_spawn, use it with box_exec, box_read and "
    "box_write, and remove it with box_rm. An idle box is suspended, and resumes when you use it. "
    "A box that nobody uses is removed later; box_keep prevents that. "
    "To keep files after a box is removed, or to share them between boxes, store them on the "
    "drive: /wrk in boxes, the wrk_ tools here. svc://fleet lists your boxes; subscribe to it for "
    "changes."
)
RESOURCE_NOT_FOUND = -32002
"""Before protocol version 2026-07-28. Since then a missing resource is an invalid argument."""

CAPABILITIES = types.ServerCapabilities(
    tools=types.ToolsCapability(list_changed=False),
    resources=types.ResourcesCapability(subscribe=True, list_changed=True),
)
OPTIONS = InitializationOptions(
    server_name=NAME, server_version=VERSION, capabilities=CAPABILITIES, instructions=INSTRUCTIONS
)
_TOOLS = [
    types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.params),
        output_schema=tool.output(),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or tool.read_only,
            open_world_hint=tool.open_world,
        ),
    )
    for tool in TOOLS
]


def build_server(session: Session, unsent: UnsentResults) -> Server[Any]:
    """Return a server for one client. `unsent` holds the budget shares of its results."""
    methods = _Methods(session, unsent)
    server: Server[Any] = Server(
        NAME,
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=methods.list_tools,
        on_call_tool=methods.call_tool,
        on_list_resources=methods.list_resources,
        on_list_resource_templates=methods.list_templates,
        on_read_resource=methods.read_resource,
        on_subscribe_resource=methods.subscribe,
        on_unsubscribe_resource=methods.unsubscribe,
        on_subscriptions_listen=methods.listen,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, methods.set_level)
    server.add_request_handler("server/discover", types.RequestParams, methods.discover)
    server.add_notification_handler(
        "notifications/initialized", types.NotificationParams, methods.initialized
    )
    # Replaces the library's tracing, which this service does not use.
    server.middleware = [_translate_errors]
    return server


async def _translate_errors(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Turn the service's errors into errors of the protocol. Tool calls handle their own errors."""
    try:
        return await call_next(ctx)
    except InternalError as error:
        raise MCPError(types.INTERNAL_ERROR, str(error)) from None
    except NotFound as error:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        raise MCPError(RESOURCE_NOT_FOUND, str(error)) from None
    except BoxdError as error:
        raise MCPError(types.INVALID_REQUEST, str(error)) from None


class _Methods:
    """The methods of one connection."""

    def __init__(self, session: Session, unsent: UnsentResults) -> None:
        self._session = session
        self._unsent = unsent

    async def discover(self, ctx: Context, params: types.RequestParams) -> types.DiscoverResult:
        """Describe the service to clients without a handshake."""
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=CAPABILITIES,
            instructions=INSTRUCTIONS,
        )

    async def initialized(self, ctx: Context, params: types.NotificationParams) -> None:
        """Enable notifications of changed lists after the handshake."""
        if self._session.watch is not None:
            self._session.watch.list_changes = True

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        """Accept any level: the service sends no log messages to clients."""
        return {}

    async def list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return all tools."""
        return types.ListToolsResult(tools=_TOOLS)

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Call a tool. Errors of the tool become a result with `isError`."""
        tool = BY_NAME.get(params.name)
        if tool is None:
            text = f"no tool {shown(params.name)}; see: tools/list"
            raise MCPError(types.INVALID_PARAMS, text)
        try:
            document, text = await self._run(ctx, tool, params.arguments or {})
        except BadArguments as error:
            return _error_result(f"{tool.name}: {error}")
        except InvalidKey as error:
            # The connection ends too, and reports the reason.
            raise MCPError(types.CONNECTION_CLOSED, str(error)) from None
        except BoxdError as error:
            message = self._session.operations.texts.named(with_tool_names(str(error)))
            return _error_result(with_address_hint(message))
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], structured_content=document)

    async def _run(
        self, ctx: Context, tool: Tool, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Run a tool; return its result and the JSON text of the result.

        The result's share of the budget stays reserved until the result is sent.
        """
        share = Share(self._session.budget)
        try:
            document = await self._session.call(tool, arguments, _progress_sender(ctx), share)
            text = await encode_document(document, READABLE)
        except BaseException:
            share.release()
            raise
        self._unsent.keep(ctx.request_id, share)
        return document, text

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return all resources."""
        entries = await self._session.list_resources()
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=entry.uri,
                    name=entry.name,
                    description=entry.description,
                    mime_type=entry.mime,
                )
                for entry in entries
            ]
        )

    async def list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the URI templates of resources that come and go."""
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=name, description=description)
                for uri, name, description in resources.TEMPLATES
            ]
        )

    async def read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return a resource. On a bidirectional connection the client then also watches it."""
        watch = self._session.watch
        if watch is None or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            resource = await self._session.read(params.uri)
        else:
            with watch.reading(params.uri):
                resource = await self._session.read(params.uri)
        contents = types.TextResourceContents(
            uri=resource.uri, mime_type=resource.mime, text=resource.text
        )
        return types.ReadResourceResult(contents=[contents])

    async def subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Watch a resource."""
        watch = self._watch()
        if not resources.is_resource_uri(params.uri):
            raise resources.resource_not_found(params.uri)
        if not watch.add(params.uri):
            raise MCPError(
                types.INVALID_REQUEST,
                f"limit reached: {MAX_WATCHED} subscriptions; unsubscribe from one first",
            )
        return types.EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Stop watching a resource."""
        self._watch().uris.discard(params.uri)
        return types.EmptyResult()

    def _watch(self) -> Watch:
        if self._session.watch is None:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        return self._session.watch

    async def listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Send notifications of changes while the request is open."""
        session = self._session
        if session.listens >= MAX_LISTENS:
            raise MCPError(
                types.INVALID_REQUEST,
                f"limit reached: {MAX_LISTENS} open subscriptions/listen requests; end one first",
            )
        session.listens += 1
        try:
            return await _Subscription(ctx, params).run(session)
        finally:
            session.listens -= 1


class _Subscription:
    """One `subscriptions/listen` request."""

    def __init__(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> None:
        requested = params.notifications
        uris = [
            uri for uri in requested.resource_subscriptions or () if resources.is_resource_uri(uri)
        ]
        self._ctx = ctx
        self._updates = PendingUpdates()
        self._watch = Watch(self._updates.add)
        self._uris = [uri for uri in uris if self._watch.add(uri)]
        self._watch.list_changes = bool(requested.resources_list_changed)
        self._meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}

    async def run(self, session: Session) -> NoReturn:
        """Acknowledge the request, then send notifications until the request is cancelled."""
        with session.operations.visits.changes(session.principal) as listener:
            await self._acknowledge()
            watching = asyncio.create_task(self._watch.run(listener), name="mcp listen")
            try:
                while True:
                    await self._notify(await self._updates.next())
            finally:
                watching.cancel()

    async def _acknowledge(self) -> None:
        honored = types.SubscriptionFilter(
            resources_list_changed=True if self._watch.list_changes else None,
            resource_subscriptions=self._uris or None,
        )
        await self._send(
            types.SubscriptionsAcknowledgedNotification(
                params=types.SubscriptionsAcknowledgedNotificationParams(
                    notifications=honored, _meta=self._meta
                )
            )
        )

    async def _notify(self, uri: str | None) -> None:
        if uri is None:
            params = types.NotificationParams(_meta=self._meta)
            await self._send(types.ResourceListChangedNotification(params=params))
        else:
            updated_params = types.ResourceUpdatedNotificationParams(uri=uri, _meta=self._meta)
            await self._send(types.ResourceUpdatedNotification(params=updated_params))

    async def _send(self, notification: types.ServerNotification) -> None:
        await self._ctx.session.send_notification(notification, self._ctx.request_id)


def _error_result(text: str) -> types.CallToolResult:
    """Return an error as a result, so that the model reads it and can call again."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _progress_sender(ctx: Context) -> Callable[[int, str], Awaitable[None]] | None:
    """Return the function that sends progress; None if the call did not ask for progress."""
    meta = (ctx.params or {}).get("_meta") or {}
    if meta.get("progressToken") is None:
        return None

    async def send(number: int, line: str) -> None:
        await ctx.session.report_progress(float(number), message=line)

    return send
