"""Errors of the guest agent and its CLI.

::

    GuestError
    ├── ConfigError      the run directory of the box has no usable configuration
    ├── SpawnError       a command of a session could not be started
    ├── DriveFailed      the box could not mount or unmount its drive
    ├── TunnelDown       the tunnel to the daemon is down
    ├── RequestFailed    the daemon rejected a request; the text is meant for the user
    └── AgentDown        the agent does not answer on the guest socket
"""

from __future__ import annotations


class GuestError(Exception):
    """Base class of the agent's expected errors; users see the text."""


class ConfigError(GuestError):
    """The run directory has no usable configuration."""


class SpawnError(GuestError):
    """A command could not be started."""


class DriveFailed(GuestError):
    """The drive could not be mounted or unmounted in the box; the text gives the reason."""


class TunnelDown(GuestError):
    """The tunnel to the daemon is down."""


class RequestFailed(GuestError):
    """The daemon rejected a request; the text gives the reason."""


class AgentDown(GuestError):
    """The agent does not answer on the guest socket."""
