"""The object server's process: `python -m boxd.embedded.objectserver CONFIGURATION`.

It ends cleanly on SIGTERM: running requests get a few seconds.

*Measured* with obstore as the client, 8 requests in flight, 4 MiB objects, client and server on the
same two cores with other work beside them: GET 840-1,050 MiB/s; PUT 620-655 MiB/s with
UNSIGNED-PAYLOAD and 395-430 with a signed SHA-256 (which both sides compute), where plain files of
4 MiB, written and fsync'd, went at 380-460 MiB/s from 8 threads and 990-1,140 from one. The server
spends 0.3 s of CPU on 768 MiB of GET and 0.9 s (0.2 of it in Python) on 768 MiB of unsigned PUT.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from boxd.embedded.files import write_private
from boxd.embedded.objectfiles import ObjectFiles
from boxd.embedded.objectserver.admin import Admin
from boxd.embedded.objectserver.bucket import Bucket
from boxd.embedded.objectserver.config import BadConfiguration, ServerConfig
from boxd.embedded.objectserver.http import HttpServer
from boxd.embedded.objectserver.keys import BadKeyTable, KeyTable
from boxd.embedded.objectserver.multipart import Multipart
from boxd.embedded.objectserver.objects import Objects
from boxd.embedded.objectserver.service import Action, Service, error_response
from boxd.embedded.objectserver.uploads import Uploads
from boxd.embedded.process import start_ticks

DESCRIPTORS = 16_384
"""Open files wanted: connections, and the objects that are being sent."""
STOP_PATIENCE = 5.0
"""Seconds that running requests get at the end."""


def actions(
    config: ServerConfig, files: ObjectFiles, uploads: Uploads
) -> dict[tuple[str, str, str], Action]:
    """Everything that is offered: (target, method, subresource)."""
    objects = Objects(files)
    bucket = Bucket(files, bucket=config.bucket, region=config.region)
    multipart = Multipart(files, uploads, bucket=config.bucket)
    return {
        ("root", "GET", ""): bucket.buckets,
        ("bucket", "HEAD", ""): bucket.head,
        ("bucket", "GET", ""): bucket.list,
        ("bucket", "GET", "location"): bucket.location,
        ("bucket", "GET", "uploads"): multipart.uploads,
        ("bucket", "POST", "delete"): objects.delete_many,
        ("bucket", "PUT", ""): bucket.create,
        ("object", "PUT", ""): objects.put,
        ("object", "GET", ""): objects.get,
        ("object", "HEAD", ""): objects.head,
        ("object", "DELETE", ""): objects.delete,
        ("object", "POST", "uploads"): multipart.create,
        ("object", "PUT", "uploadid"): multipart.put_part,
        ("object", "POST", "uploadid"): multipart.complete,
        ("object", "DELETE", "uploadid"): multipart.abort,
        ("object", "GET", "uploadid"): multipart.parts,
    }


def assemble(config: ServerConfig, keys: KeyTable, files: ObjectFiles) -> HttpServer:
    """The server with all its parts; blocks while directories are made. Raises OSError."""
    files.prepare()
    uploads = Uploads(config.root / "uploads", files)
    uploads.prepare()
    service = Service(
        keys,
        actions(config, files, uploads),
        bucket=config.bucket,
        region=config.region,
        unsigned_payload=config.unsigned_payload,
    )
    return HttpServer(service.handle, error_response, max_connections=config.max_connections)


async def serve(config: ServerConfig) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError when the port is taken."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keys = KeyTable(config.root / "keys.json")
    server = assemble(config, keys, ObjectFiles(config.root))
    port = await server.start(config.host, config.port)
    status: dict[str, object] = {
        "pid": os.getpid(),
        "ticks": start_ticks(os.getpid()),
        "port": port,
    }
    admin = Admin(keys, status)
    await admin.start(config.root, "admin")
    write_private(config.root / "state.json", json.dumps(status).encode("ascii"))
    await stopping.wait()
    await admin.stop()
    await server.stop(STOP_PATIENCE)
    (config.root / "state.json").unlink()


def main(arguments: list[str]) -> int:
    """Runs the process; its exit status."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m boxd.embedded.objectserver CONFIGURATION\n")
        return 2
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        config = ServerConfig.from_file(Path(arguments[0]))
        lock = os.open(config.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asyncio.run(serve(config))
    except BlockingIOError:
        sys.stderr.write("the object server of this directory runs already\n")
        return 3
    except (OSError, BadConfiguration, BadKeyTable) as error:
        sys.stderr.write(f"the object server cannot run: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
