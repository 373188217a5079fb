"""Checks of the integration with Deep Agents. The first argument names one of them.

Run by an interpreter that has the published package, before a service that the environment names.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from boxd_client import AsyncClient, Client
from boxd_client.integrations.deepagents import BoxBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd_client import Box


class Script(GenericFakeChatModel):
    """A model that says what a script has, whatever its tools are."""

    def bind_tools(self, tools: Sequence[object], **options: object) -> Script:
        """Return the model itself."""
        return self


def check_commands(box: Box) -> None:
    """Commands have their code, all output in order, a directory, and limits."""
    backend = BoxBackend(box, workdir="/tmp", limit=1000)
    assert backend.id == box.ref
    done = backend.execute("pwd; echo error >&2; exit 3")
    assert (done.exit_code, done.truncated) == (3, False)
    assert sorted(done.output.splitlines()) == ["/tmp", "error"]
    done = backend.execute("head -c 5000 /dev/zero | tr '\\0' x; exit 4")
    assert (done.output, done.exit_code, done.truncated) == ("x" * 1000, 4, True)
    assert backend.execute("sleep 1000", timeout=1).exit_code == 124
    assert backend.execute("echo ok", timeout=0).output == "ok\n"
    assert BoxBackend(box, workdir="/none").execute("echo no").exit_code == 1
    assert asyncio.run(backend.aexecute("echo $((1 + 1))")).output == "2\n"


def check_files(box: Box) -> None:
    """All operations of the protocol work on files of the box."""
    backend = BoxBackend(box)
    text = "one\ntwo\n" + "long " * 20000 + "\n"
    assert backend.write("/srv/app/notes.txt", text).error is None
    read = backend.read("/srv/app/notes.txt", limit=2)
    assert read.file_data is not None
    assert read.file_data["content"] == "one\ntwo"
    assert backend.edit("/srv/app/notes.txt", "two", "zwei").error is None
    assert backend.edit("/srv/app/notes.txt", "long " * 20000, "short").error is None
    assert box.files.read("/srv/app/notes.txt") == b"one\nzwei\nshort\n"
    listing = backend.ls("/srv/app")
    assert [entry["path"] for entry in listing.entries or []] == ["/srv/app/notes.txt"]
    matches = backend.grep("zwei", "/srv").matches or []
    assert [(one["path"], one["line"]) for one in matches] == [("/srv/app/notes.txt", 2)]
    found = backend.glob("**/*.txt", "/srv").matches or []
    assert [entry["path"] for entry in found] in (["/srv/app/notes.txt"], ["app/notes.txt"])
    data = bytes(range(256)) * 1000
    files = [("/srv/data", data), ("relative", b""), ("/proc/none", b"")]
    errors = [one.error for one in backend.upload_files(files)]
    assert errors[:2] == [None, "invalid_path"]
    assert errors[2]
    answers = backend.download_files(["/srv/data", "/srv/none", "relative", "/srv"])
    assert answers[0].content == data
    assert [one.error for one in answers[1:3]] == ["file_not_found", "invalid_path"]
    assert answers[3].error == "is_directory"
    assert backend.delete("/srv/app").error is None
    assert backend.read("/srv/app/notes.txt").error


def check_terminals(box: Box) -> None:
    """Terminals of the client work with the websockets that the frameworks need."""
    box.exec("true")

    async def concurrent() -> bytes:
        async with AsyncClient() as client, client.box(box.ref).terminal() as terminal:
            await terminal.write(b"exec echo $((6 * 7))\n")
            output = b""
            while data := await terminal.read():
                output += data
            return output

    with box.terminal() as terminal:
        terminal.write(b"exec echo $((6 * 7))\n")
        assert b"42" in b"".join(iter(terminal.read, b""))
    assert b"42" in asyncio.run(concurrent())


def check_agent(box: Box) -> None:
    """An agent with a scripted model runs a command, writes a file and reads it."""

    def call(name: str, **arguments: object) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])

    script = [
        call("write_file", file_path="/srv/number", content="42\n"),
        call("execute", command="cat /srv/number; uname -n"),
        AIMessage("done"),
    ]
    agent = create_deep_agent(Script(messages=iter(script)), backend=BoxBackend(box))
    result = agent.invoke({"messages": [HumanMessage("go")]})
    answers = [one for one in result["messages"] if isinstance(one, ToolMessage)]
    assert result["messages"][-1].content == "done"
    assert f"42\n{box.info().name}" in str(answers[-1].content), answers
    assert box.files.read("/srv/number") == b"42\n"


if __name__ == "__main__":
    with Client() as client, client.temporary() as temporary:
        globals()[f"check_{sys.argv[1]}"](temporary)
