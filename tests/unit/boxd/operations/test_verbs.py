"""SSH, HTTP and MCP offer the same verbs: the registry, the code and the interfaces agree.

The handler of each command, route and tool must call the method of its verb. The test reads the
handler and the functions of its module that the handler calls.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.interface import Catalog
from boxd.http.proxy import proxy
from boxd.http.routes import mcp, wrk
from boxd.http.routes.boxes import files
from boxd.http.routes.commands import batch, command_streams, term, watch
from boxd.http.routes.commands import exec as exec_api
from boxd.http.routes.table import JSON_ROUTES, STREAM_OPERATIONS
from boxd.mcp.resources import STATIC_RESOURCES, TEMPLATES, read_resource
from boxd.mcp.tools.registry import TOOLS
from boxd.operations import Operations
from boxd.operations.verbs.registry import FOR_ADMINISTRATORS, PLUMBING, VERBS
from boxd.operations.verbs.verb import INTERFACES, Verb
from boxd.ssh.cli.registry import CLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.operations.verbs.verb import Interface

NOT_VERBS: dict[str, str] = {
    "help": "explains the commands",
    "mcp": "is the door of MCP over SSH",
    "GET /healthz": "is for load balancers",
    "GET /docs": "is the manual",
    "GET /v1/openapi.json": "is the manual",
    "GET /v1/tls-ask": "is for the TLS proxy",
    "GET /v1/mcp": "is the door of MCP",
    "POST /v1/mcp": "is the door of MCP",
    "DELETE /v1/mcp": "is the door of MCP",
    "OPTIONS /v1/mcp": "is the door of MCP",
    "HEAD /v1/wrk/{path...}": "is GET without a body",
    "HEAD /v1/boxes/{ref}/files/{path...}": "is GET without a body",
    "HEAD /v1/boxes/{ref}/commands/{command}/output": "is GET without a body",
    "HEAD /v1/boxes/{ref}/watch": "is GET without a body",
    "HEAD /v1/boxes/{box}/term": "is GET without a body",
    "svc://fleet": "is the tool `fleet` with pushes",
    "svc://asks": "is the tool `fleet` with pushes",
    "svc://surfaces": "is the tool `surface_list` with pushes",
}
"""Names that an interface has, and that are no verbs."""
PROXY = proxy.TEMPLATE
"""Ports of boxes: every method belongs to the program in the box."""


def families() -> dict[str, type]:
    """The class of each family of `Operations`, by its attribute."""
    module = sys.modules[Operations.__module__]
    classes = {}
    for one in dataclasses.fields(Operations):
        if one.name == "observer":
            continue  # receives reports, and does nothing for users
        named = getattr(module, str(one.type), None)
        classes[one.name] = Catalog if one.type == "Catalog" else named
    assert all(inspect.isclass(found) for found in classes.values()), classes
    return {name: found for name, found in classes.items() if inspect.isclass(found)}


def methods() -> set[str]:
    """Every public method of every family for users, as `family.method`."""
    return {
        f"{family}.{name}"
        for family, owner in families().items()
        if family not in FOR_ADMINISTRATORS
        for name, member in vars(owner).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def handlers(interface: Interface) -> dict[str, Callable[..., object] | type]:
    """The function or class that serves each name of an interface."""
    if interface == "ssh":
        return {command.name: command.run for command in CLI.commands}
    if interface == "mcp":
        tools: dict[str, Callable[..., object] | type] = {tool.name: tool.run for tool in TOOLS}
        uris = [*(one.uri for one in STATIC_RESOURCES), *(template for template, *_ in TEMPLATES)]
        return tools | dict.fromkeys(uris, read_resource)
    served: dict[str, Callable[..., object] | type] = {
        f"{route.method} {route.path}": route.handler for route in JSON_ROUTES
    }
    for template, operations in STREAM_OPERATIONS.items():
        endpoint = _endpoint(template)
        served |= {f"{method.upper()} {template}": endpoint for method in operations}
    return {name: run for name, run in served.items() if not name.endswith(PROXY)}


def _endpoint(template: str) -> type:
    """The class that serves the streams of a template."""
    places: dict[str, type] = {
        exec_api.TEMPLATE: exec_api.ExecEndpoint,
        batch.TEMPLATE: batch.BatchEndpoint,
        files.TEMPLATE: files.BoxFilesEndpoint,
        command_streams.OUTPUT_TEMPLATE: command_streams.OutputEndpoint,
        command_streams.STDIN_TEMPLATE: command_streams.StdinEndpoint,
        watch.TEMPLATE: watch.WatchEndpoint,
        wrk.TEMPLATE: wrk.WrkEndpoint,
        term.TEMPLATE: term.TermEndpoint,
        mcp.TEMPLATE: mcp.McpEndpoint,
        PROXY: proxy.ProxyEndpoint,
    }
    return places[template]


def calls_of(handler: Callable[..., object] | type) -> set[str]:
    """The methods of families, as `family.method`, that a handler or its helpers call."""
    module = sys.modules[handler.__module__]
    definitions = {
        node.name: node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    calls: set[str] = set()
    waiting, seen = [handler.__name__], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        for node in ast.walk(definitions[name]):
            if isinstance(node, ast.Name):
                waiting.append(node.id)
            elif isinstance(node, ast.Attribute):
                words = ast.unparse(node).split(".")
                calls.add(".".join(words[-2:]))
    return calls


def test_every_method_is_a_verb_or_has_a_reason_not_to_be() -> None:
    verbs = {verb.method for verb in VERBS}
    assert methods() == verbs | PLUMBING.keys()
    assert not verbs & PLUMBING.keys()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.method)
def test_a_verb_has_a_name_at_each_interface_or_a_reason(verb: Verb) -> None:
    missing = dict(verb.missing)
    for interface in INTERFACES:
        assert bool(verb.names(interface)) is not (interface in missing), interface
        assert missing.get(interface, "a reason"), interface


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_name_exists_and_every_existing_name_is_listed(interface: Interface) -> None:
    listed = {name for verb in VERBS for name in verb.names(interface)}
    assert listed | (NOT_VERBS.keys() & handlers(interface).keys()) == handlers(interface).keys()
    assert not listed & NOT_VERBS.keys()


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_handler_calls_the_method_of_its_verb(interface: Interface) -> None:
    served = handlers(interface)
    wrong = [
        f"{name} does not call {verb.method}"
        for verb in VERBS
        for name in verb.names(interface)
        if verb.method not in calls_of(served[name])
    ]
    assert wrong == []


def test_no_verb_stands_twice() -> None:
    counts = Counter(verb.method for verb in VERBS)
    assert [method for method, count in counts.items() if count > 1] == []
