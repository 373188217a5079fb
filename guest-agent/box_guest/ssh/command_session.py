"""Requests about background commands (`box_guest.shared.command_messages`). Protocol adapter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from box_guest.process import accounts
from box_guest.process.background import BackgroundOptions
from box_guest.process.process import CommandSpec, session_env
from box_guest.shared import command_messages as messages
from box_guest.shared.requests import MalformedMessage, boolean, integer
from box_guest.ssh.request_session import RequestSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from box_guest.process.background import BackgroundCommand


class CommandRequestSession(RequestSession):
    """One request about background commands."""

    async def serve(self, request: dict[str, Any]) -> None:
        """Answer the request."""
        verb = request.get("do")
        if verb == messages.START:
            await self._start(request)
        elif verb == messages.LIST:
            states = self.services.background_commands.states()
            await self.answer({"commands": [state.to_json() for state in states]})
        elif verb == messages.SHOW:
            await self._describe(self._command(request))
        elif verb == messages.OUTPUT:
            await self._output(request)
        elif verb == messages.WRITE:
            await self._write(request)
        elif verb == messages.SIGNAL:
            await self._signal(request)
        elif verb == messages.REMOVE:
            number = messages.command_id(request.get("id"))
            state = await self.services.background_commands.remove(number)
            await self.answer({"command": state.to_json()})
        else:
            raise MalformedMessage("the box's agent does not know this request")

    def _command(self, request: Mapping[str, Any]) -> BackgroundCommand:
        number = messages.command_id(request.get("id"))
        return self.services.background_commands.find(number)

    async def _describe(self, command: BackgroundCommand) -> None:
        await self.answer({"command": command.state().to_json()})

    async def _start(self, request: Mapping[str, Any]) -> None:
        cmd, timeout_s, chan = request.get("cmd"), request.get("timeout_s"), self.channel()
        if not isinstance(cmd, str) or not cmd or "\0" in cmd:
            raise MalformedMessage("a command is a text without NUL characters")
        if chan is None:
            return
        options = BackgroundOptions(
            None if timeout_s is None else integer(timeout_s, 1, messages.MAX_TIMEOUT_S),
            keep_awake=boolean(request.get("keep_awake")),
            stdin=boolean(request.get("stdin")),
        )
        config = self.services.config
        account = accounts.find(config.user)
        env = session_env(account, config, chan.get_environment_bytes())
        spec = CommandSpec(account, cmd, env, None)
        await self._describe(self.services.background_commands.start(spec, options))

    async def _output(self, request: Mapping[str, Any]) -> None:
        command, follow = self._command(request), boolean(request.get("follow"))
        offset = integer(request.get("offset"), 0, messages.MAX_OFFSET)
        limit = integer(request.get("limit"), 0, messages.MAX_OFFSET)
        if offset > command.log.end:
            raise MalformedMessage(
                f"offset {offset} is after the end of the output of command {command.id}, which has"
                f" {command.log.end} bytes"
            )
        await self._describe(command)
        while limit:
            if offset < command.log.begin:
                await self.write(messages.gap(command.log.begin - offset))
                offset = command.log.begin
            data, stderr = command.log.read(offset, min(limit, messages.MAX_FRAME))
            if data:
                kind = messages.STDERR if stderr else messages.STDOUT
                await self.write(messages.frame(kind, data))
                offset, limit = offset + len(data), limit - len(data)
            elif follow and command.running:
                await command.news()
            elif offset == command.log.end:
                break
        state = json.dumps(command.state().to_json()).encode("ascii")
        await self.write(messages.frame(messages.END, state))

    async def _write(self, request: Mapping[str, Any]) -> None:
        command, close = self._command(request), boolean(request.get("close"))
        command.check_input()
        while data := await self.input():
            await command.feed(data)
        if close:
            await command.end_input()
        await self._describe(command)

    async def _signal(self, request: Mapping[str, Any]) -> None:
        command, name = self._command(request), request.get("signal")
        if name not in messages.SIGNALS:
            raise MalformedMessage(f"the signal must be one of {', '.join(messages.SIGNALS)}")
        command.signal(name)
        await self._describe(command)
