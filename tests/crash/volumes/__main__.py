"""Makes the volume that `test_old_volumes.py` opens, as this release writes it.

`python -m tests.crash.volumes DSN CREDENTIALS`: before the first release with a new schema version,
on an empty volume of the old one. CREDENTIALS is its file, DSN a superuser's of its database.
Leaves `v<version>.sql`, `.json` and `.tar.gz` (tables, what they show, objects) beside this file.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import obstore
from obstore.store import S3Store

from tests.harness.volumes.picture import picture
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO, Caller, Ino, SetAttr, XattrFlags

HERE = Path(__file__).parent
SOMEBODY = Caller(1000, 1000)
BLOCKS = 4 * 1024 * 1024


def pattern(seed: int, size: int) -> bytes:
    """Bytes that differ from place to place and pack well."""
    return b"".join(b"%07d %07d\n" % (seed, line // 256) for line in range(size // 16 + 1))[:size]


async def fill(fs: Filesystem) -> None:
    """One of everything that a volume can hold."""
    top = await fs.mkdir(ROOT_INO, b"tree", 0o2755, SOMEBODY)
    deep = await fs.mkdir(top.ino, b"d\xff\xfe", 0o1777, SOMEBODY)
    for name, size in (("empty", 0), ("small", 5000), ("inline", 65536), ("stored", 65537)):
        await put(fs, deep.ino, name.encode(), [(0, pattern(size, size))])
    await put(fs, top.ino, b"blocks", [(0, pattern(1, 2 * BLOCKS + 12345))])
    await put(fs, top.ino, b"sparse", [(200 << 20, pattern(2, 100_000)), (70_000, pattern(3, 10))])
    pieces = [(at, pattern(at, 200_000)) for at in (0, 150_000, 50_000)]
    ino = await put(fs, top.ino, b"overlaid", pieces)
    await fs.setattr(ino, SetAttr(size=300_001, mode=0o4750, uid=7, gid=8))
    await fs.setattr(ino, SetAttr(size=400_000, mtime_ns=1_234_567_890_123_456_789))
    await fs.link(ino, deep.ino, b"second name")
    await fs.symlink(ROOT_INO, b"symlink", b"tree/d\xff\xfe/small", SOMEBODY)
    await fs.mknod(ROOT_INO, b"fifo", 0o010640, 0, SOMEBODY)
    await fs.mknod(ROOT_INO, b"socket", 0o140600, 0, SOMEBODY)
    await fs.setxattr(ino, b"user.note", pattern(4, 1000), XattrFlags.CREATE)
    gone = await put(fs, ROOT_INO, b"removed", [(0, pattern(5, 300_000))])
    await fs.open(gone, os.O_RDONLY)  # held by a session that never ends
    await fs.unlink(ROOT_INO, b"removed")


async def put(fs: Filesystem, parent: Ino, name: bytes, pieces: list[tuple[int, bytes]]) -> Ino:
    """A file written in pieces, each committed by itself; its inode."""
    _, handle = await fs.create(parent, name, 0o640, os.O_RDWR, SOMEBODY)
    for at, data in pieces:
        await handle.write(at, data)
        await handle.fsync()
    await handle.close()
    return handle.ino


async def main(dsn: str, credentials: str) -> None:
    """See the module."""
    config = VolumeConfig.from_file(Path(credentials))
    fs = await Filesystem.connect(config)
    await fill(fs)
    await fs.sync()
    seen = await picture(fs)
    await fs.statfs()  # sends the releases of what is closed; only `removed` stays held
    connection = await asyncpg.connect(dsn)
    query = f'SELECT schema_version FROM "{config.schema}".volume'  # noqa: S608 our own name
    name = f"v{await connection.fetchval(query)}"
    await connection.close()
    text = dump(dsn, config.schema).replace(config.schema, "VOLUME_NAME")
    (HERE / f"{name}.sql").write_text(text)
    (HERE / f"{name}.json").write_text(
        json.dumps(seen, sort_keys=True, ensure_ascii=True).replace("], ", "],\n") + "\n"
    )
    with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
        for key, data in objects(config.store):
            member = tarfile.TarInfo(key)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    print(name, len(seen), "entries")
    os._exit(0)  # as if killed: the session stays


def objects(config: StoreConfig) -> list[tuple[str, bytes]]:
    """Key below the prefix, and bytes, of each object."""
    store = S3Store(
        config.bucket,
        endpoint=config.endpoint,
        region=config.region,
        access_key_id=config.access_key,
        secret_access_key=config.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    prefix = config.prefix + "/"
    return [
        (one["path"].removeprefix(prefix), bytes(obstore.get(store, one["path"]).bytes()))
        for batch in obstore.list(store, prefix)
        for one in batch
    ]


def dump(dsn: str, schema: str) -> str:
    """The tables with their rows, with the rights of its role, without owners."""
    parts = urlsplit(dsn)
    place = {
        "PGHOST": parse_qs(parts.query)["host"][0],
        "PGUSER": parts.username or "",
        "PGPASSWORD": parts.password or "",
        "PGDATABASE": parts.path[1:],
    }
    command = ["pg_dump", "-n", schema, "--inserts", "--no-owner"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **place}
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("--")]
    return re.sub(r"(?m)^(SET|SELECT pg_catalog).*\n|^\\.*\n", "", "\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
