"""The object server's process: `python -m objectserver CONFIGURATION`.

SIGTERM ends it cleanly: running requests have a few seconds to finish.

*Measured* with obstore as the client, 8 requests in flight, 4 MiB objects, client and server on the
same two cores alongside other work: GET 840-1,050 MiB/s; PUT 620-655 MiB/s with UNSIGNED-PAYLOAD
and 395-430 with a signed SHA-256 (which both sides compute). Plain files of 4 MiB, written and
fsync'd, reached 380-460 MiB/s from 8 threads and 990-1,140 from one. The server spends 0.3 s of CPU
on 768 MiB of GET and 0.9 s (0.2 of it in Python) on 768 MiB of unsigned PUT.
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

from objectserver.admin import Admin
from objectserver.bucket import Bucket
from objectserver.config import BadConfiguration, ServerConfig
from objectserver.durable import write_private
from objectserver.files import ObjectFiles
from objectserver.http import HttpServer
from objectserver.keys import BadKeyTable, KeyTable
from objectserver.multipart import Multipart
from objectserver.objects import Objects
from objectserver.service import Action, Service, error_response
from objectserver.uploads import Uploads

DESCRIPTORS = 16_384
"""Limit of open files that the server sets for itself. Each connection needs one file, and so does
each object that the server sends."""
STOP_PATIENCE = 5.0
"""Seconds that running requests have to finish when the server stops."""


def actions(
    config: ServerConfig, files: ObjectFiles, uploads: Uploads
) -> dict[tuple[str, str, str], Action]:
    """Return all supported operations by (target, method, subresource)."""
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
    """Build the server. Blocks while it creates directories. Raises OSError."""
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
    """Serve until SIGTERM or SIGINT. Raises OSError if the port is in use."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keys = KeyTable(config.root / "keys.json")
    server = assemble(config, keys, ObjectFiles(config.root))
    port = await server.start(config.host, config.port)
    status: dict[str, object] = {
        "pid": os.getpid(),
        "ticks": _start_ticks(),
        "port": port,
    }
    admin = Admin(keys, status)
    await admin.start(config.root, "admin")
    write_private(config.root / "state.json", json.dumps(status).encode("ascii"))
    await stopping.wait()
    await admin.stop()
    await server.stop(STOP_PATIENCE)
    (config.root / "state.json").unlink()


def _start_ticks() -> int:
    """Return the start time of this process in clock ticks since boot.

    Together with the pid it identifies the process.
    """
    stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    return int(stat.rpartition(")")[2].split()[19])


def main(arguments: list[str]) -> int:
    """Run the server and return its exit status.

    0: it was stopped; 1: it could not run; 2: wrong usage; 3: another server uses the directory.
    """
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m objectserver CONFIGURATION\n")
        return 2
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        config = ServerConfig.from_file(Path(arguments[0]))
        lock = os.open(config.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asyncio.run(serve(config))
    except BlockingIOError:
        sys.stderr.write("an object server is already running on this directory\n")
        return 3
    except (OSError, BadConfiguration, BadKeyTable) as error:
        sys.stderr.write(f"the object server cannot start: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
