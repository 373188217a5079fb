"""The objects of an account besides single boxes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from boxd_client._async.basis import pause
from boxd_client._async.box import AsyncBox
from boxd_client.errors import RequestTimeout
from boxd_client.models import (
    Agent,
    Ask,
    BoxInfo,
    Key,
    Profile,
    SecretName,
    Share,
    Snapshot,
    Workspace,
)
from boxd_client.protocol import JSON, Request, Retry, json_request, model_of, models_of, segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd_client._async.transport import AsyncTransport
    from boxd_client.protocol import ModelT

POLL_S = 25
"""Seconds that one request waits for the answer to a question."""
SPEC_SIGNS = frozenset("+!:^")


class _AsyncCollection:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _list(
        self, path: str, model: type[ModelT], workspace: str | None = None
    ) -> list[ModelT]:
        request = Request("GET", path, {"ws": workspace}, retry=Retry.SAFE)
        return models_of(await self._transport.send(request), model)

    async def _get(self, path: str, model: type[ModelT]) -> ModelT:
        return model_of(await self._transport.send(Request("GET", path, retry=Retry.SAFE)), model)

    async def _remove(self, path: str, params: dict[str, object] | None = None) -> None:
        await self._transport.send(Request("DELETE", path, params or {}, retry=Retry.SAFE))


class AsyncBoxes(_AsyncCollection):
    """The boxes of the account."""

    async def create(
        self,
        name: str,
        *,
        image: str | None = None,
        flavor: str | None = None,
        deadline: str | None = None,
        lifetime: str | None = None,
        durable: bool | None = None,
        fresh: bool | None = None,
    ) -> AsyncBox:
        """Create a box, or resume the one of this name, and return it.

        `name` may have a workspace (`ws/name`), or be a whole spec (`dev:debian:small^2h`).
        `deadline` and `lifetime` are durations such as `2h`. `fresh` replaces an existing box.
        """
        body: dict[str, object] = {"durable": durable}
        workspace: str | None = None
        if SPEC_SIGNS & set(name):
            body["spec"] = name
        else:
            head, slash, tail = name.partition("/")
            workspace = head if slash else None
            body |= {"name": tail if slash else head, "image": image, "flavor": flavor}
            body |= {"deadline": deadline, "lifetime": lifetime, "fresh": fresh}
        request = json_request(
            "POST", "/v1/boxes", body, params={"ws": workspace}, retry=Retry.KEYED
        )
        info = model_of(await self._transport.send(request), BoxInfo)
        return AsyncBox(self._transport, info.ref)

    async def snapshots(self, workspace: str | None = None) -> list[Snapshot]:
        """Return all snapshots, also those of removed boxes."""
        return await self._list("/v1/snapshots", Snapshot, workspace)

    async def list(self, workspace: str | None = None) -> list[BoxInfo]:
        """Return all boxes that the key reaches, or those of a workspace."""
        return await self._list("/v1/boxes", BoxInfo, workspace)

    async def get(self, ref: str) -> BoxInfo:
        """Return one box with its current use."""
        return await AsyncBox(self._transport, ref).info()


class AsyncWorkspaces(_AsyncCollection):
    """The workspaces of the account."""

    async def list(self) -> list[Workspace]:
        """Return all workspaces."""
        return await self._list("/v1/workspaces", Workspace)

    async def create(self, name: str) -> Workspace:
        """Create a workspace."""
        request = json_request("POST", "/v1/workspaces", {"name": name}, retry=Retry.KEYED)
        return model_of(await self._transport.send(request), Workspace)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a workspace; with `force`, also its boxes and its drive."""
        await self._remove(f"/v1/workspaces/{segment(name)}", {"force": force})

    async def set_profile(self, name: str, profile: str | None) -> Workspace:
        """Set the default profile of new boxes; None removes it."""
        path = f"/v1/workspaces/{segment(name)}/profile"
        content = json.dumps({"profile": profile}).encode()
        request = Request("PUT", path, headers={"Content-Type": JSON}, content=content)
        return model_of(await self._transport.send(request), Workspace)


class AsyncProfiles(_AsyncCollection):
    """The profiles of the account: defaults of new boxes."""

    async def list(self) -> list[Profile]:
        """Return all profiles."""
        return await self._list("/v1/profiles", Profile)

    async def get(self, name: str) -> Profile:
        """Return one profile."""
        return await self._get(f"/v1/profiles/{segment(name)}", Profile)

    async def set(self, name: str, image: str, **options: str | float | bool | None) -> Profile:
        """Create or replace a profile.

        Options: `flavor`, `lifetime_s`, `deadline_s`, `egress`, `durable`.
        """
        body: dict[str, object] = {"image": image, **options}
        path = f"/v1/profiles/{segment(name)}"
        request = json_request("PUT", path, body, retry=Retry.SAFE)
        return model_of(await self._transport.send(request), Profile)

    async def build(self, name: str, box: str, **options: str | float | bool | None) -> Profile:
        """Create or replace a profile from the disk of a box. It has the options of `set`."""
        body: dict[str, object] = {"from": box, **options}
        path = f"/v1/profiles/{segment(name)}/build"
        request = json_request("POST", path, body, retry=Retry.KEYED)
        return model_of(await self._transport.send(request), Profile)

    async def remove(self, name: str) -> None:
        """Remove a profile."""
        await self._remove(f"/v1/profiles/{segment(name)}")


class AsyncSecrets(_AsyncCollection):
    """The secrets of the account and of its workspaces. Values are never returned."""

    async def list(self, workspace: str | None = None) -> list[SecretName]:
        """Return the names of all secrets."""
        return await self._list("/v1/secrets", SecretName, workspace)

    async def set(
        self, name: str, value: str, *, workspace: str | None = None, tier: str | None = None
    ) -> SecretName:
        """Set a secret. `tier`: `account` or `workspace`."""
        request = json_request(
            "PUT",
            f"/v1/secrets/{segment(name)}",
            {"value": value, "tier": tier},
            params={"ws": workspace},
            retry=Retry.SAFE,
        )
        return model_of(await self._transport.send(request), SecretName)

    async def remove(
        self, name: str, *, workspace: str | None = None, tier: str | None = None
    ) -> None:
        """Remove a secret."""
        await self._remove(f"/v1/secrets/{segment(name)}", {"ws": workspace, "tier": tier})


class AsyncKeys(_AsyncCollection):
    """The API keys of the account. Only SSH creates them."""

    async def list(self) -> list[Key]:
        """Return all keys, without their texts."""
        return await self._list("/v1/keys", Key)

    async def remove(self, name: str) -> None:
        """Revoke a key."""
        await self._remove(f"/v1/keys/{segment(name)}")


class AsyncShares(_AsyncCollection):
    """The shares of all boxes."""

    async def list(self) -> list[Share]:
        """Return all shares."""
        return await self._list("/v1/shares", Share)

    async def remove(self, share_id: str) -> None:
        """Revoke a share; its sessions end."""
        await self._remove(f"/v1/shares/{segment(share_id, 'share')}")


class AsyncAgents(_AsyncCollection):
    """The program that `delegate` runs."""

    async def get(self) -> Agent:
        """Return the program."""
        return await self._get("/v1/agent", Agent)

    async def set(
        self, cmd: str, env: str, token: str, *, output_format: str | None = None
    ) -> Agent:
        """Set the program, the name of the variable of its token, and the token.

        `output_format`: `text` or `jsonl`.
        """
        body = {"cmd": cmd, "env": env, "token": token, "format": output_format}
        request = json_request("PUT", "/v1/agent", body, retry=Retry.SAFE)
        return model_of(await self._transport.send(request), Agent)

    async def remove(self) -> None:
        """Remove the program and its token."""
        await self._remove("/v1/agent")


class AsyncAsks(_AsyncCollection):
    """Questions to the owner of the account."""

    async def list(self) -> list[Ask]:
        """Return the open questions."""
        return await self._list("/v1/asks", Ask)

    async def ask(
        self, question: str, options: Sequence[str] = (), *, box: str | None = None
    ) -> Ask:
        """Ask a question and return it without waiting."""
        body = {"question": question, "options": list(options) or None, "box": box}
        request = json_request("POST", "/v1/asks", body, retry=Retry.KEYED)
        return model_of(await self._transport.send(request), Ask)

    async def get(self, ask_id: str) -> Ask:
        """Return the state of a question, and its answer if there is one."""
        return await self._get(f"/v1/asks/{segment(ask_id, 'question')}", Ask)

    async def wait(self, ask_id: str, timeout: float = 3600.0) -> Ask:
        """Wait for the end of a question. Raises RequestTimeout after `timeout` seconds."""
        end = time.monotonic() + timeout
        path = f"/v1/asks/{segment(ask_id, 'question')}"
        while True:
            rest = end - time.monotonic()
            if rest <= 0:
                raise RequestTimeout(f"nobody answered question {ask_id} within {timeout:g} s")
            start = time.monotonic()
            params = {"wait_s": max(1, min(POLL_S, int(rest)))}
            answer = await self._transport.send(Request("GET", path, params, retry=Retry.SAFE))
            ask = model_of(answer, Ask)
            if ask.state != "open":
                return ask
            if time.monotonic() - start < 1:
                await pause(1)

    async def answer(self, ask_id: str, answer: str) -> Ask:
        """Answer a question; the program that asked continues."""
        path = f"/v1/asks/{segment(ask_id, 'question')}/answer"
        return model_of(
            await self._transport.send(json_request("POST", path, {"answer": answer})), Ask
        )
