"""Leaks of a volume: objects without a slice, and rows without an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import boto3
from botocore.config import Config

from tests.harness.loop import run
from wrkfs.layout import block_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.config import StoreConfig, VolumeConfig

EMPTY = {
    "inode": 1,
    "dentry": 0,
    "slice": 0,
    "inline": 0,
    "symlink": 0,
    "xattr": 0,
    "sustained": 0,
    "trash": 0,
    "removed_link": 0,
    "deleted": 0,
}
"""Rows of an empty volume: the root."""
ENDED = EMPTY | {"session": 0, "op_result": 0, "slice_range": 0, "lease": 0, "recall": 0}
"""The same after the end of all sessions, and after upkeep."""


COUNT = "SELECT count(*) FROM TABLE"
RUN = "SELECT count(*) FROM lease WHERE ino = 0 AND session_id = 0"


def listed(store: StoreConfig) -> set[str]:
    """Return the keys of all objects under the volume's prefix, without the prefix."""
    client = boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        config=Config(retries={"total_max_attempts": 3}),
    )
    prefix = store.prefix + "/"
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=prefix)
        return {
            item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", [])
        }
    finally:
        client.close()


def stray_objects(volume: VolumeConfig) -> set[str]:
    """Return objects that belong to no slice in use, being deleted or being written."""
    # Objects first: the listing then has no object of a later slice.
    objects = listed(volume.store)
    strays = objects - run(_accounted(volume, objects))
    # Garbage may have been collected between the two looks.
    return strays & listed(volume.store) if strays else strays


def missing_objects(volume: VolumeConfig) -> set[str]:
    """Return blocks of shown slices that the store lacks. No client may write meanwhile."""
    return run(_shown(volume)) - listed(volume.store)


def rows(volume: VolumeConfig, wanted: Iterable[str] = EMPTY) -> dict[str, int]:
    """Return the number of rows by table.

    It does not count the row in `lease` for the database's present run.
    """
    return run(_rows(volume, wanted))


async def _accounted(volume: VolumeConfig, objects: set[str]) -> set[str]:
    numbers = {int(key.split("/")[0]) for key in objects}
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        known = await connection.fetch(
            """SELECT n FROM unnest($1::bigint[]) AS n
            WHERE EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = n AND NOT s.is_inline)
                OR EXISTS (SELECT 1 FROM deleted d WHERE d.slice_id = n)
                OR EXISTS (SELECT 1 FROM slice_range r WHERE n >= r.first AND n < r.first + r.count)
            """,
            sorted(numbers),
        )
    finally:
        await connection.close()
    accounted = {number for (number,) in known}
    return {key for key in objects if int(key.split("/")[0]) in accounted}


async def _shown(volume: VolumeConfig) -> set[str]:
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        found = await connection.fetch(
            "SELECT DISTINCT slice_id, size FROM slice WHERE NOT is_inline"
        )
    finally:
        await connection.close()
    return {f"{number}/{index}" for number, size in found for index in range(block_count(size))}


async def _rows(volume: VolumeConfig, wanted: Iterable[str]) -> dict[str, int]:
    connection = await asyncpg.connect(volume.meta_dsn)
    try:
        found = {
            table: await connection.fetchval(COUNT.replace("TABLE", table)) for table in wanted
        }
        if "lease" in found:
            found["lease"] -= await connection.fetchval(RUN)
        return found
    finally:
        await connection.close()
