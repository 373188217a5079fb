"""Client library of the Box Service.

::

    from boxd_client import Client

    box = Client().box("dev")
    print(box.exec("uname -a").stdout)

`AsyncClient` has the same methods for asyncio. `boxd_client.errors` has the tree of errors.
"""

from __future__ import annotations

from boxd_client._async.box import AsyncBox
from boxd_client._async.client import AsyncClient
from boxd_client._async.commands import AsyncCommand
from boxd_client._async.files import AsyncDrive, AsyncFiles
from boxd_client._async.streams import AsyncBatchStream, AsyncCommandStream, AsyncWatchStream
from boxd_client._async.terminal import AsyncTerminal
from boxd_client._sync.box import Box
from boxd_client._sync.client import Client
from boxd_client._sync.commands import Command
from boxd_client._sync.files import Drive, Files
from boxd_client._sync.streams import BatchStream, CommandStream, WatchStream
from boxd_client._sync.terminal import Terminal
from boxd_client.errors import (
    AnswerTooLarge,
    BoxError,
    ConfigurationError,
    Conflict,
    ConnectionLost,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    QuotaExceeded,
    RequestTimeout,
    ServiceError,
    ServiceFailed,
    StorageFull,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from boxd_client.models import (
    Agent,
    Ask,
    BatchError,
    BatchExit,
    BatchOutput,
    BoxInfo,
    Change,
    CommandFailed,
    CommandInfo,
    Dropped,
    Entry,
    Exit,
    FileStat,
    Identity,
    Key,
    Output,
    Port,
    PortAnswer,
    Profile,
    Result,
    SecretName,
    Share,
    Snapshot,
    Stat,
    StoredOutput,
    Workspace,
)
from boxd_client.protocol import VERSION as __version__
from boxd_client.protocol import RetryPolicy

__all__ = [
    "Agent",
    "AnswerTooLarge",
    "Ask",
    "AsyncBatchStream",
    "AsyncBox",
    "AsyncClient",
    "AsyncCommand",
    "AsyncCommandStream",
    "AsyncDrive",
    "AsyncFiles",
    "AsyncTerminal",
    "AsyncWatchStream",
    "BatchError",
    "BatchExit",
    "BatchOutput",
    "BatchStream",
    "Box",
    "BoxError",
    "BoxInfo",
    "Change",
    "Client",
    "Command",
    "CommandFailed",
    "CommandInfo",
    "CommandStream",
    "ConfigurationError",
    "Conflict",
    "ConnectionLost",
    "Drive",
    "Dropped",
    "Entry",
    "Exit",
    "FileStat",
    "Files",
    "Forbidden",
    "Identity",
    "InvalidRequest",
    "Key",
    "NotFound",
    "Output",
    "Port",
    "PortAnswer",
    "PreconditionFailed",
    "Profile",
    "ProtocolError",
    "QuotaExceeded",
    "RequestTimeout",
    "Result",
    "RetryPolicy",
    "SecretName",
    "ServiceError",
    "ServiceFailed",
    "Share",
    "Snapshot",
    "Stat",
    "StorageFull",
    "StoredOutput",
    "Terminal",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "WatchStream",
    "Workspace",
    "__version__",
]
