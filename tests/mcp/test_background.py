"""Background commands by their tools."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from tests.harness.http.mcp import Talk, talk

if TYPE_CHECKING:
    from tests.harness.http.web import Web

UNKNOWN = "0123456789abcdef"


async def whole(client: Talk, number: str, **arguments: object) -> tuple[str, dict[str, Any]]:
    """All output of stdout up to the end of the command, and the last result."""
    text, offset = "", 0
    while True:
        result = await client.call(
            "command_output", box="dev", id=number, offset=offset, wait_s=60, **arguments
        )
        text += result["stdout"]
        offset = result["next_offset"]
        if result["state"] == "exited" and offset == result["output_bytes"]:
            return text, result


async def test_a_command_from_its_start_to_its_end(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        command = await client.call(
            "command_start", box="dev", cmd="read x; echo $x $Y; exit 3", stdin=True, env={"Y": "y"}
        )
        number = command["id"]
        assert (command["state"], command["stdin_open"]) == ("running", True)
        result = await client.call("command_output", box="dev", id=number)
        assert (result["stdout"], result["state"], result["next_offset"]) == ("", "running", 0)
        result = await client.call("command_output", box="dev", id=number, wait_s=1)
        assert (result["stdout"], result["state"]) == ("", "running")
        assert (await client.call("command_list", box="dev"))["commands"] == [command]
    async with talk(web) as client:
        await client.call("command_write", box="dev", id=number, data="hello\n", close=True)
        text, result = await whole(client, number)
        assert (text, result["exit_code"], result["next_offset"]) == ("hello y\n", 3, 8)
        ended = await client.call("command_end", box="dev", id=number)
        assert (ended["state"], ended["exit_code"]) == ("exited", 3)
        assert (await client.call("command_list", box="dev"))["commands"] == []
        assert "no background command" in await client.refusal(
            "command_output", box="dev", id=number
        )


async def test_output_comes_in_portions(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        command = await client.call("command_start", box="dev", cmd="seq 20000")
        text, _ = await whole(client, command["id"], max_output=7000)
        assert text == "".join(f"{number}\n" for number in range(1, 20001))


async def test_signals_and_bytes(web: Web) -> None:
    async with talk(web) as client:
        await client.call("box_spawn", spec="dev")
        command = await client.call("command_start", box="dev", cmd="cat", stdin=True)
        data = base64.b64encode(b"\xff\0").decode()
        await client.call(
            "command_write", box="dev", id=command["id"], data=data, encoding="base64"
        )
        result = await client.call("command_output", box="dev", id=command["id"], wait_s=60)
        assert (result["stdout"], result["encoding"]) == (data, "base64")
        await client.call("command_end", box="dev", id=command["id"], signal="INT")
        _, result = await whole(client, command["id"])
        assert result["exit_code"] == 130
        for arguments in ({"id": UNKNOWN}, {"id": "x"}, {"id": command["id"], "signal": "ABRT"}):
            assert await client.refusal("command_end", box="dev", **arguments)
