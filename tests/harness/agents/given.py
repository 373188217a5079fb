"""Attachments with an environment, like those of owners with secrets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pytest

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.operations import Operations


def give(monkeypatch: pytest.MonkeyPatch, operations: Operations, env: Mapping[str, str]) -> None:
    """Give this environment to every later attachment of these operations."""
    attach = operations.boxes.attach

    @asynccontextmanager
    async def giving(*words: Any, **options: Any) -> AsyncIterator[Attachment]:  # noqa: ANN401 - those of attach
        async with attach(*words, **options) as attachment:
            yield replace(attachment, env=env)

    monkeypatch.setattr(operations.boxes, "attach", giving)
