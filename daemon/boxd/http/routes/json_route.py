"""Protocol adapter only. JSON routes: one function and one description for each operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from boxd.errors import BadRequest
from boxd.http.requests.auth import authenticate
from boxd.http.requests.headers import header, path_text, query_flag, query_values, query_workspace
from boxd.http.requests.json_body import read_body, read_json, sent_again
from boxd.http.routes.route import Route, matches
from boxd.operations.idempotent import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from starlette.types import Receive, Scope, Send

    from boxd.http.description.operation import Operation
    from boxd.http.requests.json_body import Form
    from boxd.http.routes.page import Pages
    from boxd.operations import Operations
    from boxd.principal import Principal

    Handler: TypeAlias = "Callable[[JsonRequest], Awaitable[Response]]"


IDEMPOTENCY_KEY = b"idempotency-key"
MAX_DIGITS = 18
"""Maximum length of a number in a query."""


@dataclass(frozen=True, slots=True)
class Services:
    """Collaborators of the JSON routes; one object for a server."""

    operations: Operations
    pages: Pages
    preview_domain: str | None
    """The domain below which preview hosts exist; None: there are none."""
    preview_authority: str | None
    """The end of the URLs of previews; None: there are none."""
    document: str
    """The OpenAPI document of this server, as JSON text."""
    docs: str
    """The page `/docs` of this server, as HTML."""
    docs_policy: str
    """The Content-Security-Policy of the page `/docs`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of an authenticated request. `ws` is the workspace of `?ws=`, unchecked."""

    operations: Operations
    principal: Principal
    ws: str | None


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """One request to a JSON route."""

    scope: Scope
    receive: Receive
    services: Services
    path: str
    """The template of the route that matched."""

    async def caller(self) -> Caller:
        """Authenticate the request and return its caller.

        Raises InvalidKey, QuotaExceeded (as `authenticate` does) and BadName for a bad `?ws=`.
        """
        operations = self.services.operations
        principal = await authenticate(self.scope, operations)
        return Caller(operations, principal, query_workspace(self.scope["query_string"]))

    async def form(self, form: type[Form]) -> Form:
        """Return the JSON body, checked against its structure. Raises what `read_json` raises."""
        return await read_json(self.scope, self.receive, form)

    def parameter(self, name: str) -> str:
        """Return the path parameter `{name}`, decoded. Raises BadRequest if it is not UTF-8."""
        index = self.path.split("/").index(f"{{{name}}}")
        return path_text(self.scope["path"].split("/")[index])

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        """Return a query parameter that is a whole number; `default` if absent.

        Raises BadRequest if it is outside `least` and `most`.
        """
        values = set(self.query(name))
        if not values:
            return default
        text = values.pop().decode("ascii", "replace")
        if values or not text.isdigit() or len(text) > MAX_DIGITS or not least <= int(text) <= most:
            raise BadRequest(f"?{name}= must be a whole number from {least} to {most}")
        return int(text)

    def query(self, name: str) -> list[bytes]:
        """Return all values of a query parameter, in order."""
        return query_values(self.scope["query_string"], name.encode())

    def flag(self, name: str) -> bool:
        """Return a query parameter that is `true` or `false`; False if absent.

        Else raises BadRequest.
        """
        return query_flag(self.scope["query_string"], name, default=False)


@dataclass(frozen=True, slots=True)
class JsonRoute:
    """One method of one path, with its handler and its description."""

    method: str
    path: str
    operation: Operation
    handler: Handler

    @property
    def route(self) -> Route:
        """The route as `Api.routes` lists it; it is public when its description needs no key."""
        return Route(self.path, (self.method,), public=not self.operation.security)

    def matches(self, path: str) -> bool:
        """Return whether a decoded path belongs to this route."""
        return matches(self.path, path)

    async def serve(self, scope: Scope, receive: Receive, send: Send, services: Services) -> None:
        """Answer one request. Exceptions of the handler pass to the caller."""
        request = JsonRequest(scope, receive, services, self.path)
        key = header(scope["headers"], IDEMPOTENCY_KEY)
        if key is None or self.method != "POST" or not self.operation.security:
            response = await self.handler(request)
        else:
            response = await self._once(request, key.decode("latin-1"))
        await response(scope, receive, send)

    async def _once(self, request: JsonRequest, key: str) -> Response:
        """Answer a request with an idempotency key: do it, or return the earlier response."""
        caller = await request.caller()
        body = await read_body(request.scope, request.receive)
        content = b"\n".join((request.scope["raw_path"], request.scope["query_string"], body))
        repeatable = JsonRequest(request.scope, sent_again(body), request.services, request.path)

        async def work() -> Outcome:
            response = await self.handler(repeatable)
            return Outcome(response.status_code, bytes(response.body).decode("utf-8"))

        outcome = await caller.operations.idempotent.once(caller.principal, key, content, work)
        headers = {"idempotent-replayed": "true"} if outcome.replayed else None
        return Response(outcome.body, outcome.status, headers, "application/json")


def json_route(method: str, path: str, operation: Operation) -> Callable[[Handler], JsonRoute]:
    """Return a decorator that turns a handler into the route of `method` and `path`."""

    def route(handler: Handler) -> JsonRoute:
        return JsonRoute(method, path, operation, handler)

    return route
