"""Errors of the guest agent and its CLI.

::

    GuestError
    ├── ConfigError      the box's run directory holds no usable configuration
    ├── SpawnError       a session's command could not be started
    ├── DriveFailed      the box could not mount its drive, or not take it away
    ├── TunnelDown       there is no tunnel to the daemon at the moment
    ├── RequestFailed    the daemon refused; its text is meant for the user
    └── AgentDown        nothing answers on the guest socket
"""

from __future__ import annotations


class GuestError(Exception):
    """Base of everything the agent refuses or fails on purpose; the text is shown to users."""


class ConfigError(GuestError):
    """The run directory holds no usable configuration."""


class SpawnError(GuestError):
    """A command could not be started."""


class DriveFailed(GuestError):
    """The drive could not be mounted in the box, or not be taken away; the text says why."""


class TunnelDown(GuestError):
    """There is no tunnel to the daemon at the moment."""


class RequestFailed(GuestError):
    """The daemon refused a request; the text says why."""


class AgentDown(GuestError):
    """Nothing answers on the guest socket."""
