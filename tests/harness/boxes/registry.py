"""An image registry on a port of this host, with the part of the distribution API that a pull
needs."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@contextmanager
def registry(root: Path, name: str, tag: str, architecture: str = "amd64") -> Iterator[str]:
    """Serve the directory `root` as image `name:tag`; yield HOST:PORT.

    The engine uses plain HTTP for registries on loopback addresses.
    """
    blobs = _Blobs(root, architecture)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, body = self._find()
            status = 200 if kind else 404
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            data = body if kind else json.dumps(error).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind or "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if kind == MANIFEST:
                self.send_header("Docker-Content-Digest", _digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def _find(self) -> tuple[str, bytes]:
            if self.path == "/v2/":
                return "application/json", b"{}"
            known = (tag, _digest(blobs.manifest))
            if self.path in {f"/v2/{name}/manifests/{one}" for one in known}:
                return MANIFEST, blobs.manifest
            digest = self.path.removeprefix(f"/v2/{name}/blobs/")
            return ("application/octet-stream" if digest in blobs.held else ""), blobs.held.get(
                digest, b""
            )

        def log_message(self, *_: object) -> None:
            """Suppress the request log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Blobs:
    """The image in parts: its one layer, its configuration, and the manifest that names them."""

    def __init__(self, root: Path, architecture: str) -> None:
        tar = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True)
        layer = gzip.compress(tar.stdout, 1)
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Env": ["PULLED=yes"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(tar.stdout)]},
            }
        ).encode()
        self.held = {_digest(layer): layer, _digest(config): config}
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _part(CONFIG, config),
                "layers": [_part(LAYER, layer)],
            }
        ).encode()


def _part(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
