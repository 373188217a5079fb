"""The version of the service, as `boxd --version` prints it. pyproject.toml sets it."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "box-service"
VERSION = metadata.version(DISTRIBUTION)
