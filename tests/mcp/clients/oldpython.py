"""A client by the last Python SDK that speaks WebSocket: does what a plan says, and prints what
came of it. Run by an interpreter of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

# By name: what is checked beside it is another release of the library.
mcp: Any = importlib.import_module("mcp")
websocket: Any = importlib.import_module("mcp.client.websocket")

PLAN = json.loads(Path(sys.argv[1]).read_text())


async def main() -> None:
    """See the module."""
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def told(message: object) -> None:
        root = getattr(message, "root", None)
        if isinstance(root, mcp.types.ResourceUpdatedNotification):
            updated.put_nowait(str(root.params.uri))

    async with (
        websocket.websocket_client(PLAN["url"]) as (read, write),
        mcp.ClientSession(read, write, message_handler=told) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        results = []
        for name, arguments in PLAN["calls"]:
            found = await session.call_tool(name, arguments)
            results.append({"error": found.isError, "content": found.structuredContent})
        fleet = "svc://fleet"
        await session.subscribe_resource(fleet)
        await session.call_tool("box_pin", {"box": PLAN["box"]})
        push = await updated.get()
        progress = []

        async def shown(done: float, total: float | None, message: str | None) -> None:
            progress.append(message)
            Path(PLAN["gate"]).touch()

        await session.call_tool("box_exec", PLAN["talking"], progress_callback=shown)
        content = (await session.read_resource(fleet)).contents[0]
        boxes = len(json.loads(getattr(content, "text", "{}"))["boxes"])
    done = {"tools": tools, "results": results, "push": push, "progress": progress}
    print(json.dumps(done | {"ended": None, "boxes": boxes}))


asyncio.run(main())
