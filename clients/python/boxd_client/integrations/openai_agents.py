"""Boxes as sandboxes of the OpenAI Agents SDK. It needs the extra `openai-agents`.

::

    from agents import Runner
    from agents.run import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from boxd_client.integrations.openai_agents import BoxdSandboxClient

    agent = SandboxAgent(name="coder", instructions="Work in the sandbox.")
    config = RunConfig(sandbox=SandboxRunConfig(client=BoxdSandboxClient()))
    result = await Runner.run(agent, "Which Python is installed?", run_config=config)
"""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING, Literal

from boxd_client._async.client import AsyncClient

try:
    from agents.sandbox import Manifest, SnapshotSpec, resolve_snapshot
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        Dependencies,
        Instrumentation,
        SandboxSession,
        SandboxSessionState,
    )

    from boxd_client.integrations.openai_agents_session import (
        BoxdSandboxSession,
        BoxdSandboxSessionState,
        Persistence,
    )
except ImportError as error:
    raise ImportError(
        "boxd_client.integrations.openai_agents needs the package openai-agents; "
        "run: pip install 'boxd-client[openai-agents]'"
    ) from error

if TYPE_CHECKING:
    from agents.sandbox.snapshot import SnapshotBase

__all__ = [
    "BoxdSandboxClient",
    "BoxdSandboxClientOptions",
    "BoxdSandboxSession",
    "BoxdSandboxSessionState",
]


class BoxdSandboxClientOptions(BaseSandboxClientOptions):
    """Which box a session uses, and what becomes of it. All options have defaults."""

    type: Literal["boxd"] = "boxd"
    box: str | None = None
    """`name` or `workspace/name`. A box that exists already is used and not removed. None: a new
    box with a random name."""
    image: str | None = None
    """Image or profile of a new box."""
    flavor: str | None = None
    """Resource limits of a new box."""
    deadline: str | None = None
    """Duration such as `2h`, after which the service removes a new box."""
    env: dict[str, str] | None = None
    """Variables of all commands. Variables of the manifest precede them."""
    exposed_ports: tuple[int, ...] = ()
    """Ports that `resolve_exposed_port` may return."""
    pause_on_exit: bool = False
    """Suspend a new box with its memory at the end of a session, instead of removing it."""
    workspace_persistence: Persistence = "tar"
    """`tar`: a snapshot has the workspace. `snapshot`: it refers to a snapshot of the whole box."""


class BoxdSandboxClient(BaseSandboxClient[BoxdSandboxClientOptions]):
    """A client of the SDK whose sandboxes are boxes.

    `url` and `key` have the defaults of `boxd_client.AsyncClient`. States of sessions do not have
    the key. `client` replaces both; you close it yourself.
    """

    backend_id = "boxd"
    supports_default_options = True

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        client: AsyncClient | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        super().__init__()
        self._url = url
        self._key = key
        self._client = client
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: BoxdSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Create a box, or attach to an existing one, and return its session.

        Raises the errors of `boxd_client.errors`.
        """
        options = options or BoxdSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        state = BoxdSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=options.exposed_ports,
            box=options.box or f"agent-{secrets.token_hex(6)}",
            image=options.image,
            flavor=options.flavor,
            deadline=options.deadline,
            env=dict(options.env or {}),
            pause_on_exit=options.pause_on_exit,
            workspace_persistence=options.workspace_persistence,
        )
        inner = self._session(state)
        await inner.attach(expected=False)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Remove the box of a session, or suspend it with `pause_on_exit`.

        A box that existed before the session stays.
        """
        inner = session._inner
        if not isinstance(inner, BoxdSandboxSession):
            raise TypeError("BoxdSandboxClient.delete expects a session of a BoxdSandboxClient")
        await inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Wake the box of a state and return its session.

        If the box is gone, a new one of the same name gets the workspace of the snapshot at the
        start of the session.
        """
        if not isinstance(state, BoxdSandboxSessionState):
            raise TypeError("BoxdSandboxClient.resume expects a BoxdSandboxSessionState")
        state.assert_path_grants_rebound()
        inner = self._session(state)
        preserved = await inner.attach(expected=True)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that `serialize_session_state` wrote."""
        return self._deserialize_session_state_payload(payload, BoxdSandboxSessionState)

    def _session(self, state: BoxdSandboxSessionState) -> BoxdSandboxSession:
        def connect() -> AsyncClient:
            return AsyncClient(self._url, self._key)

        return BoxdSandboxSession(state, connect, self._client)
