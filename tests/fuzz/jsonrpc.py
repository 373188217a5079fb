"""JSON-RPC that is nearly right: messages for the MCP plane, spoilt in their text or their meaning.

No tool that makes a box is ever named, and there is none: nothing that these messages ask for can
reach this machine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from boxd.mcp.tools.registry import TOOLS
from tests.harness.http.mcp import INITIALIZE, LEGACY, MODERN, envelope

if TYPE_CHECKING:
    from random import Random

MAKES_BOXES = frozenset({"box_spawn", "box_fork", "delegate"})
NAMES = [tool.name for tool in TOOLS if tool.name not in MAKES_BOXES]
METHODS = (
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "server/discover",
    "logging/setLevel",
    "prompts/list",
    "completion/complete",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "no/such",
    "",
)
URIS = ("svc://fleet", "svc://asks", "svc://surfaces", "svc://surfaces/x", "svc://", "", "http://x")
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        1e308,
        2**63,
        10**400,
        "",
        "x",
        "\0",
        "\ud800",
        "é" * 300,
        "../" * 40,
    ),
    *([], {}, [[]], {"": {}}, {"_meta": {}}, ["x"] * 300),
)
"""Values for any place."""


def messages(random: Random) -> list[str | bytes]:
    """What one client says, from its first word to its last."""
    said: list[dict[str, Any]] = []
    modern = random.random() < 0.3
    if not modern and random.random() < 0.8:
        version = random.choice((LEGACY, LEGACY, MODERN, "2024-11-05", ""))
        said.append(_request(0, "initialize", INITIALIZE | {"protocolVersion": version}))
        said.append({"jsonrpc": "2.0", "method": "notifications/initialized"})
    numbers = range(1, random.randrange(3, 12))
    said += [_said(random, number, modern=modern) for number in numbers]
    return [_spoilt(random, one) for one in said]


def _request(number: object, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _said(random: Random, number: int, *, modern: bool) -> dict[str, Any]:
    method = random.choice(METHODS)
    params: dict[str, Any] = {}
    if method == "tools/call" or random.random() < 0.3:
        method, name = "tools/call", random.choice(NAMES)
        params = {"name": name, "arguments": _arguments(random, name)}
    elif method.startswith("resources/"):
        params = {"uri": random.choice(URIS)}
    elif method == "subscriptions/listen":
        params = {"notifications": {"resourceSubscriptions": [random.choice(URIS)]}}
    elif method == "notifications/cancelled":
        params = {"requestId": random.randrange(number + 1)}
    if modern:
        params["_meta"] = envelope()
    message = _request(number, method, params)
    if method.startswith("notifications/"):
        del message["id"]
    return message


def _arguments(random: Random, name: str) -> dict[str, Any]:
    (tool,) = (tool for tool in TOOLS if tool.name == name)
    found: dict[str, Any] = {}
    for param in tool.params:
        if param.required or random.random() < 0.5:
            plain = {"integer": 1, "boolean": True, "strings": ["a"], "environment": {"A": "b"}}
            found[param.name] = plain.get(param.kind, random.choice(("x", "dev", "a/b", "ws1")))
    return found


def _spoilt(random: Random, message: dict[str, Any]) -> str | bytes:
    """One message, in most cases with something wrong in it."""
    kind = random.random()
    if kind < 0.25:
        return json.dumps(message)
    if kind < 0.65:
        _bend(random, message)
        return json.dumps(message)
    if kind < 0.7:
        return json.dumps([message] * random.randrange(3))
    text = bytearray(json.dumps(message).encode())
    if kind < 0.8:
        del text[random.randrange(len(text)) :]
    for _ in range(random.randrange(4)):
        if text:
            text[random.randrange(len(text))] = random.randrange(256)
    if kind > 0.97:
        text += b"[" * 50_000
    return bytes(text) if random.random() < 0.7 else text.decode("utf-8", "replace")


def _bend(random: Random, message: dict[str, Any]) -> None:
    """Puts something odd somewhere in it, or takes something away."""
    place: Any = message
    while isinstance(place, dict) and place:
        key = random.choice(list(place))
        if not isinstance(place[key], dict) or random.random() < 0.3:
            if random.random() < 0.2:
                del place[key]
            elif key not in ("name", "method"):
                place[key] = random.choice(ODD)
            return
        place = place[key]
