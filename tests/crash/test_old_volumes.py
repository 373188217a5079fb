"""CR-10: a volume that an older release wrote opens after migration, with everything in it.

`volumes/` holds one of each schema version, made by `python -m tests.crash.volumes`.
"""

from __future__ import annotations

import json
import secrets
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import obstore
import pytest
from obstore.store import S3Store

from tests.harness.volumes.fsck import fsck_clean_async
from tests.harness.volumes.picture import picture
from wrkfs.config import VolumeConfig
from wrkfs.fs import Filesystem
from wrkfs.meta.sql.migrate import create_volume_schema, update_volume
from wrkfs.types import ROOT_INO, Caller
from wrkfs.upkeep import trash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.config import StoreConfig

VOLUMES = Path(__file__).parent / "volumes"
HOLES = {200 * 1024 * 1024 - 10, 400_000 - 300_001}
"""Bytes in holes of the sparse files in a stored volume: one written far out, one extended."""
VERSIONS = sorted(file.stem for file in VOLUMES.glob("v*.sql"))


@pytest.fixture(params=VERSIONS)
async def old_volume(
    request: pytest.FixtureRequest, drive_database: str, object_volume: StoreConfig
) -> AsyncIterator[VolumeConfig]:
    """The stored volume of one version, put into the test's stores as it is."""
    name, password = f"v{secrets.token_hex(16)}", secrets.token_hex(16)
    user, _, rest = drive_database.removeprefix("postgresql://").partition("@")
    assert user
    admin = await asyncpg.connect(drive_database)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        # What provisioning gives a role of any version; the tables come from the dump.
        await create_volume_schema(admin, name, name)
        await admin.execute(f"DROP SCHEMA {name} CASCADE")
        text = (VOLUMES / f"{request.param}.sql").read_text(encoding="ascii")
        await admin.execute(text.replace("VOLUME_NAME", name))
        _upload(object_volume, VOLUMES / f"{request.param}.tar.gz")
        dsn = f"postgresql://{name}:{password}@{rest}"
        yield VolumeConfig(volume=name, schema=name, meta_dsn=dsn, store=object_volume)
    finally:
        await admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        await admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
        await admin.close()


@pytest.mark.promise("D1")
@pytest.mark.timeout(120)
async def test_a_volume_of_an_older_release_opens_whole(
    old_volume: VolumeConfig, drive_database: str, request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["old_volume"]
    admin = await asyncpg.connect(drive_database)
    try:
        await update_volume(admin, old_volume.schema, old_volume.schema)
        await admin.execute(f"SET search_path = {old_volume.schema}")
        held = await admin.fetch("SELECT holes FROM inode WHERE holes <> 0")
        assert {row["holes"] for row in held} == HOLES
    finally:
        await admin.close()
    await fsck_clean_async(old_volume)
    expected = json.loads((VOLUMES / f"{version}.json").read_text(encoding="ascii"))
    fs = await Filesystem.connect(old_volume)
    try:
        assert await picture(fs) == expected
        await fsck_clean_async(old_volume)
        attr, handle = await fs.create(ROOT_INO, b"new", 0o600, 2, Caller(0, 0))
        assert attr.ino not in {entry[0] for entry in expected.values()}
        await handle.write(0, bytes(100_000))
        await handle.close()
        await fs.remove_tree(ROOT_INO, b"tree")
        use = await fs.statfs()
        left = sum(path != "/" and not path.startswith("/tree") for path in expected)
        # The session that held a removed file is dead: its file goes within seconds.
        held = use.inodes_used - left - 1
        assert held in (0, 1)
        assert use.bytes_used == 100_000 + held * 300_000
        await fsck_clean_async(old_volume)
        # The trash of this release works on it.
        done = await trash.restore(fs, b"tree")
        assert (done.missing, done.earlier) == ({}, [])
        again = await picture(fs)
        assert {path: again[path] for path in expected if path != "/"} == {
            path: entry for path, entry in expected.items() if path != "/"
        }
        await fsck_clean_async(old_volume)
    finally:
        await fs.close()


def test_every_version_is_kept() -> None:
    migrations = Path(update_volume.__code__.co_filename).parent / "migrations"
    released = len(list(migrations.glob("[0-9]*_*.sql"))) - 1
    assert len(VERSIONS) >= max(1, released), "see volumes/__main__.py"


def _upload(config: StoreConfig, archive: Path) -> None:
    store = S3Store(
        config.bucket,
        endpoint=config.endpoint,
        region=config.region,
        access_key_id=config.access_key,
        secret_access_key=config.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    with tarfile.open(archive) as members:
        for member in members:
            data = members.extractfile(member)
            assert data is not None
            obstore.put(store, f"{config.prefix}/{member.name}", data.read())
