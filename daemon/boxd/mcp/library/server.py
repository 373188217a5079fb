"""The protocol's methods, by the library's low-level server: one for each connection.

It knows no transport. What a method does is the session's; here it gets the protocol's form.
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
from boxd.mcp.messages.encoding import READABLE, text_of
from boxd.mcp.sessions.session import MAX_LISTENS, InternalError
from boxd.mcp.sessions.watch import News, Watch
from boxd.mcp.tools.hints import addressed, for_tools
from boxd.mcp.tools.params import BadArguments, schema_of
from boxd.mcp.tools.registry import BY_NAME, TOOLS
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from boxd.mcp.library.unsent import Unsent
    from boxd.mcp.sessions.session import Session
    from boxd.mcp.tools.tool import Tool

    Context = ServerRequestContext[Any, Any]

NAME = "boxd"
VERSION = "0.1.0"
INSTRUCTIONS = (
    "Boxes are isolated machines that you make with box_spawn, use with box_exec, box_read and "
    "box_write, and remove with box_rm; an unused one sleeps by itself and wakes when it is used. "
    "Files that are to outlive a box, or that several boxes share, belong on the drive: /wrk in "
    "boxes, the wrk_ tools here. svc://fleet tells what there is, and its changes."
)
RESOURCE_MISSING = -32002
"""Before 2026-07-28; from then on it is a bad argument."""

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
        description=tool.about,
        input_schema=schema_of(tool.params),
        output_schema=tool.output(),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads,
            destructive_hint=tool.destroys,
            idempotent_hint=tool.repeatable or tool.reads,
            open_world_hint=tool.outside,
        ),
    )
    for tool in TOOLS
]


def build_server(session: Session, unsent: Unsent) -> Server[Any]:
    """A server whose methods are those of one client. Of what it answers, `unsent` keeps what the
    results have taken from the owner's budget."""
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
    # In the place of tracing, which nobody here reads.
    server.middleware = [_errors_told]
    return server


async def _errors_told(ctx: Context, call_next: CallNext) -> HandlerResult:
    """What fails on the way of a method that is no tool."""
    try:
        return await call_next(ctx)
    except InternalError as error:
        raise MCPError(types.INTERNAL_ERROR, str(error)) from None
    except NotFound as error:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        raise MCPError(RESOURCE_MISSING, str(error)) from None
    except BoxdError as error:
        raise MCPError(types.INVALID_REQUEST, str(error)) from None


class _Methods:
    """One connection's."""

    def __init__(self, session: Session, unsent: Unsent) -> None:
        self._session = session
        self._unsent = unsent

    async def discover(self, ctx: Context, params: types.RequestParams) -> types.DiscoverResult:
        """What is served, without a handshake."""
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=CAPABILITIES,
            instructions=INSTRUCTIONS,
        )

    async def initialized(self, ctx: Context, params: types.NotificationParams) -> None:
        """The handshake is over: from now on there are pushes."""
        if self._session.watch is not None:
            self._session.watch.lists = True

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        """Taken; nothing is logged to clients."""
        return {}

    async def list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """All tools."""
        return types.ListToolsResult(tools=_TOOLS)

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Calls one: what it refuses is a result, too."""
        tool = BY_NAME.get(params.name)
        if tool is None:
            text = f"there is no tool {shown(params.name)}; see: tools/list"
            raise MCPError(types.INVALID_PARAMS, text)
        try:
            found, text = await self._made(ctx, tool, params.arguments or {})
        except BadArguments as error:
            return _refused(f"{tool.name}: {error}")
        except InvalidKey as error:
            # The connection is about to end as well, and says why.
            raise MCPError(types.CONNECTION_CLOSED, str(error)) from None
        except BoxdError as error:
            named = self._session.operations.texts.named(for_tools(str(error)))
            return _refused(addressed(named))
        document = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[document], structured_content=found)

    async def _made(
        self, ctx: Context, tool: Tool, given: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """What a tool gives, and as text; what it has taken is kept until that is sent."""
        share = Share(self._session.budget)
        try:
            found = await self._session.call(tool, given, _progress(ctx), share)
            text = await text_of(found, READABLE)
        except BaseException:
            share.release()
            raise
        self._unsent.keep(ctx.request_id, share)
        return found, text

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """All resources."""
        found = await self._session.listing()
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=one.uri, name=one.name, description=one.about, mime_type=one.mime
                )
                for one in found
            ]
        )

    async def list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """How resources are called that come and go."""
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=name, description=about)
                for uri, name, about in resources.TEMPLATES
            ]
        )

    async def read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """One of them. Who has read it on a connection that stays hears when it changes."""
        watch = self._session.watch
        if watch is None or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            found = await self._session.read(params.uri)
        else:
            with watch.reading(params.uri):
                found = await self._session.read(params.uri)
        content = types.TextResourceContents(uri=found.uri, mime_type=found.mime, text=found.text)
        return types.ReadResourceResult(contents=[content])

    async def subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """From now on changes of it are told."""
        watch = self._watch()
        if not resources.known(params.uri):
            raise resources.missing(params.uri)
        if not watch.add(params.uri):
            raise MCPError(types.INVALID_REQUEST, "there are too many subscriptions")
        return types.EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Not any more."""
        self._watch().uris.discard(params.uri)
        return types.EmptyResult()

    def _watch(self) -> Watch:
        if self._session.watch is None:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        return self._session.watch

    async def listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Tells changes for as long as the request is open."""
        session = self._session
        if session.listens >= MAX_LISTENS:
            raise MCPError(
                types.INVALID_REQUEST, f"busy: there are {MAX_LISTENS} subscriptions already"
            )
        session.listens += 1
        try:
            return await _Listening(ctx, params).run(session)
        finally:
            session.listens -= 1


class _Listening:
    """One `subscriptions/listen`."""

    def __init__(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> None:
        wanted = params.notifications
        known = [uri for uri in wanted.resource_subscriptions or () if resources.known(uri)]
        self._ctx = ctx
        self._news = News()
        self._watch = Watch(self._news.tell)
        self._uris = [uri for uri in known if self._watch.add(uri)]
        self._watch.lists = bool(wanted.resources_list_changed)
        self._meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}

    async def run(self, session: Session) -> NoReturn:
        """Acknowledges first; ends with the request."""
        with session.operations.visits.changes(session.principal) as listener:
            await self._acknowledge()
            watching = asyncio.create_task(self._watch.run(listener), name="mcp listen")
            try:
                while True:
                    await self._tell(await self._news.next())
            finally:
                watching.cancel()

    async def _acknowledge(self) -> None:
        honored = types.SubscriptionFilter(
            resources_list_changed=True if self._watch.lists else None,
            resource_subscriptions=self._uris or None,
        )
        await self._send(
            types.SubscriptionsAcknowledgedNotification(
                params=types.SubscriptionsAcknowledgedNotificationParams(
                    notifications=honored, _meta=self._meta
                )
            )
        )

    async def _tell(self, uri: str | None) -> None:
        if uri is None:
            params = types.NotificationParams(_meta=self._meta)
            await self._send(types.ResourceListChangedNotification(params=params))
        else:
            updated = types.ResourceUpdatedNotificationParams(uri=uri, _meta=self._meta)
            await self._send(types.ResourceUpdatedNotification(params=updated))

    async def _send(self, notification: types.ServerNotification) -> None:
        await self._ctx.session.send_notification(notification, self._ctx.request_id)


def _refused(text: str) -> types.CallToolResult:
    """A result that tells the model what is wrong, so that it can call again."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _progress(ctx: Context) -> Callable[[int, str], Awaitable[None]] | None:
    """How a call that asked for it is told of its progress."""
    meta = (ctx.params or {}).get("_meta") or {}
    if meta.get("progressToken") is None:
        return None

    async def send(number: int, line: str) -> None:
        await ctx.session.report_progress(float(number), message=line)

    return send
