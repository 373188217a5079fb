"""The object server by clients that we did not write: boto3, obstore, s3cmd."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import boto3
import obstore
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import StoreConfig

MIB = 1024 * 1024
Checksums: TypeAlias = Literal["when_supported", "when_required"]
S3Client: TypeAlias = Any
"""boto3 makes its clients at run time; they have no class to name."""


@pytest.fixture(params=["when_supported", "when_required"])
def s3(object_volume: StoreConfig, request: pytest.FixtureRequest) -> Iterator[S3Client]:
    client = boto3_client(object_volume, request.param)
    yield client
    client.close()


def boto3_client(store: StoreConfig, checksums: Checksums = "when_supported") -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        config=Config(
            signature_version="s3v4",
            retries={"total_max_attempts": 1},
            request_checksum_calculation=checksums,
        ),
    )


def obstore_client(store: StoreConfig, *, unsigned: bool = False) -> S3Store:
    return S3Store(
        store.bucket,
        endpoint=store.endpoint,
        region=store.region,
        access_key_id=store.access_key,
        secret_access_key=store.secret_key,
        virtual_hosted_style_request=False,
        unsigned_payload=unsigned,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


KEYS = [
    "plain",
    "dir/file.txt",
    "with space and +plus&amp;=?#%25.bin",
    "unicode/é/雪/𝄞",
    "dots/../../up",
    "..",
    "a//b",
    "slash/",
    "UPPER/lower",
    "tilde~star*(paren)'quote\"",
    "n" * 300 + "/" + "é" * 200,
]


def test_boto3_objects(s3: S3Client, object_volume: StoreConfig) -> None:
    bucket = object_volume.bucket
    for number, name in enumerate(KEYS):
        key = f"{object_volume.prefix}/{name}"
        body = random.Random(number).randbytes(number * 70_001)
        put = s3.put_object(
            Bucket=bucket, Key=key, Body=body, Metadata={"n": str(number)}, ContentType="x/y"
        )
        got = s3.get_object(Bucket=bucket, Key=key)
        assert got["Body"].read() == body
        assert got["ETag"] == put["ETag"]
        assert got["Metadata"] == {"n": str(number)}
        assert got["ContentType"] == "x/y"
        head = s3.head_object(Bucket=bucket, Key=key)
        assert head["ContentLength"] == len(body)
        assert head["ETag"] == put["ETag"]
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=object_volume.prefix + "/")
    wanted = sorted((f"{object_volume.prefix}/{name}" for name in KEYS), key=str.encode)
    assert [row["Key"] for row in listed["Contents"]] == wanted
    assert [row["Size"] for row in listed["Contents"]] == [
        KEYS.index(key.removeprefix(object_volume.prefix + "/")) * 70_001 for key in wanted
    ]
    for key in wanted:
        s3.delete_object(Bucket=bucket, Key=key)
    assert s3.list_objects_v2(Bucket=bucket, Prefix=object_volume.prefix + "/")["KeyCount"] == 0


def test_boto3_overwrite_and_conditions(s3: S3Client, object_volume: StoreConfig) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/o"}
    first = s3.put_object(**where, Body=b"one")["ETag"]
    second = s3.put_object(**where, Body=b"two")["ETag"]
    assert first != second
    assert s3.get_object(**where)["Body"].read() == b"two"
    with pytest.raises(ClientError) as refused:
        s3.get_object(**where, IfMatch=first)
    assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
    with pytest.raises(ClientError) as refused:
        s3.get_object(**where, IfNoneMatch=second)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 304
    with pytest.raises(ClientError) as refused:
        s3.put_object(**where, Body=b"three", IfNoneMatch="*")
    assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
    assert s3.get_object(**where)["Body"].read() == b"two"


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-1000004", 5, 1_000_005),
        ("bytes=2999999-", 2_999_999, 3_000_000),
        ("bytes=10-99999999", 10, 3_000_000),
        ("bytes=-7", 2_999_993, 3_000_000),
        ("bytes=-99999999", 0, 3_000_000),
    ],
)
def test_boto3_ranges(
    s3: S3Client, object_volume: StoreConfig, wanted: str, start: int, end: int
) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/r"}
    body = random.Random(7).randbytes(3_000_000)
    s3.put_object(**where, Body=body)
    got = s3.get_object(**where, Range=wanted)
    assert got["Body"].read() == body[start:end]
    assert got["ContentRange"] == f"bytes {start}-{end - 1}/3000000"


def test_boto3_errors(s3: S3Client, object_volume: StoreConfig) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/absent"}
    with pytest.raises(ClientError) as refused:
        s3.get_object(**where)
    assert refused.value.response["Error"]["Code"] == "NoSuchKey"
    with pytest.raises(ClientError) as refused:
        s3.head_object(**where)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    s3.delete_object(**where)
    s3.put_object(**where, Body=b"")
    assert s3.get_object(**where)["Body"].read() == b""
    with pytest.raises(ClientError) as refused:
        s3.get_object(**where, Range="bytes=0-5")
    assert refused.value.response["Error"]["Code"] == "InvalidRange"


def test_boto3_listing_pages_delimiter_and_start(s3: S3Client, object_volume: StoreConfig) -> None:
    bucket, prefix = object_volume.bucket, object_volume.prefix + "/"
    names = [f"{chr(97 + i % 5)}/{i:03d}" for i in range(40)] + ["a", "a-b", "a.b", "b", "zz"]
    for name in names:
        s3.put_object(Bucket=bucket, Key=prefix + name, Body=name.encode())
    wanted = sorted(prefix + name for name in names)
    for size in (1, 7, 1000):
        pages = s3.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": size}
        )
        assert [row["Key"] for page in pages for row in page.get("Contents", [])] == wanted
        pages = s3.get_paginator("list_objects").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": size}
        )
        assert [row["Key"] for page in pages for row in page.get("Contents", [])] == wanted
        for operation in ("list_objects_v2", "list_objects"):
            pages = s3.get_paginator(operation).paginate(
                Bucket=bucket, Prefix=prefix, Delimiter="/", PaginationConfig={"PageSize": size}
            )
            keys, groups = [], []
            for page in pages:
                keys += [row["Key"] for row in page.get("Contents", [])]
                groups += [row["Prefix"] for row in page.get("CommonPrefixes", [])]
            assert keys == [prefix + name for name in ("a", "a-b", "a.b", "b", "zz")]
            assert groups == [f"{prefix}{letter}/" for letter in "abcde"]
    after = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, StartAfter=prefix + "d/")
    assert [row["Key"] for row in after["Contents"]] == [k for k in wanted if k > prefix + "d/"]
    part = s3.list_objects_v2(Bucket=bucket, Prefix=prefix + "a/00")
    assert [row["Key"] for row in part["Contents"]] == [prefix + "a/000", prefix + "a/005"]


def test_boto3_delete_many(s3: S3Client, object_volume: StoreConfig) -> None:
    bucket, prefix = object_volume.bucket, object_volume.prefix + "/"
    for number in range(30):
        s3.put_object(Bucket=bucket, Key=f"{prefix}{number}/x&<y>", Body=b"x")
    names = [{"Key": f"{prefix}{number}/x&<y>"} for number in range(29)] + [{"Key": prefix + "no"}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": names})
    assert len(answer["Deleted"]) == 30
    assert "Errors" not in answer
    left = s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
    assert [row["Key"] for row in left["Contents"]] == [f"{prefix}29/x&<y>"]


def test_boto3_multipart(s3: S3Client, object_volume: StoreConfig) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/big"}
    body = random.Random(9).randbytes(17 * MIB + 3)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(body), where["Bucket"], where["Key"], Config=config)
    target = io.BytesIO()
    s3.download_fileobj(where["Bucket"], where["Key"], target, Config=config)
    assert hashlib.sha256(target.getvalue()).digest() == hashlib.sha256(body).digest()
    assert s3.head_object(**where)["ETag"].endswith('-4"')
    upload = s3.create_multipart_upload(**where, Metadata={"a": "b"})["UploadId"]
    tag = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"x" * 10)["ETag"]
    parts = s3.list_parts(**where, UploadId=upload)["Parts"]
    assert [(part["PartNumber"], part["Size"], part["ETag"]) for part in parts] == [(1, 10, tag)]
    listed = s3.list_multipart_uploads(Bucket=where["Bucket"], Prefix=object_volume.prefix + "/")
    assert [row["UploadId"] for row in listed["Uploads"]] == [upload]
    assert s3.get_object(**where)["ContentLength"] == len(body)
    s3.abort_multipart_upload(**where, UploadId=upload)
    with pytest.raises(ClientError) as refused:
        s3.list_parts(**where, UploadId=upload)
    assert refused.value.response["Error"]["Code"] == "NoSuchUpload"


def test_boto3_multipart_mistakes(s3: S3Client, object_volume: StoreConfig) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/m"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    tags = [
        s3.upload_part(**where, UploadId=upload, PartNumber=n, Body=b"x" * n)["ETag"]
        for n in (1, 2)
    ]
    for parts, code in (
        ([(1, tags[1])], "InvalidPart"),
        ([(3, tags[0])], "InvalidPart"),
        ([(2, tags[1]), (1, tags[0])], "InvalidPartOrder"),
        ([(1, tags[0]), (2, tags[1])], "EntityTooSmall"),
    ):
        rows = [{"PartNumber": number, "ETag": tag} for number, tag in parts]
        with pytest.raises(ClientError) as refused:
            s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": rows})
        assert refused.value.response["Error"]["Code"] == code
    with pytest.raises(ClientError) as refused:
        s3.get_object(**where)
    assert refused.value.response["Error"]["Code"] == "NoSuchKey"


def test_boto3_copy_and_bucket(s3: S3Client, object_volume: StoreConfig) -> None:
    bucket, prefix = object_volume.bucket, object_volume.prefix
    s3.put_object(Bucket=bucket, Key=f"{prefix}/from", Body=b"c" * 99_999, Metadata={"k": "v"})
    s3.copy_object(
        Bucket=bucket, Key=f"{prefix}/to", CopySource={"Bucket": bucket, "Key": f"{prefix}/from"}
    )
    copied = s3.get_object(Bucket=bucket, Key=f"{prefix}/to")
    assert copied["Body"].read() == b"c" * 99_999
    assert copied["Metadata"] == {"k": "v"}
    assert s3.head_bucket(Bucket=bucket)["BucketRegion"] == object_volume.region
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None


def test_boto3_presigned(s3: S3Client, object_volume: StoreConfig) -> None:
    where = {"Bucket": object_volume.bucket, "Key": object_volume.prefix + "/pre signed+"}
    url = s3.generate_presigned_url("put_object", Params=where, ExpiresIn=60)
    request = urllib.request.Request(url, data=b"presigned", method="PUT")  # noqa: S310 - loopback
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
        assert answer.status == 200
    url = s3.generate_presigned_url("get_object", Params=where, ExpiresIn=60)
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        assert answer.read() == b"presigned"


@pytest.mark.parametrize("unsigned", [False, True])
async def test_obstore(object_volume: StoreConfig, unsigned: bool) -> None:
    store = obstore_client(object_volume, unsigned=unsigned)
    bodies = {
        f"{object_volume.prefix}/{n}/0": random.Random(n).randbytes(n * 500_003) for n in range(10)
    }
    for key, body in bodies.items():
        await obstore.put_async(store, key, body, use_multipart=False)
    for key, body in bodies.items():
        assert bytes(await (await obstore.get_async(store, key)).bytes_async()) == body
        if body:
            part = await obstore.get_range_async(store, key, start=1000, length=200_000)
            assert bytes(part) == body[1000:201_000]
    rows = [row async for page in obstore.list(store, object_volume.prefix) for row in page]
    assert {row["path"]: row["size"] for row in rows} == {k: len(v) for k, v in bodies.items()}
    with pytest.raises(AlreadyExistsError):
        await obstore.put_async(store, f"{object_volume.prefix}/1/0", b"x", mode="create")
    big = f"{object_volume.prefix}/big"
    body = os.urandom(11 * MIB)
    await obstore.put_async(store, big, body, use_multipart=True, chunk_size=5 * MIB)
    assert bytes(await (await obstore.get_async(store, big)).bytes_async()) == body
    await obstore.delete_async(store, [*bodies, big, f"{object_volume.prefix}/absent"])
    with pytest.raises(FileNotFoundError):
        await obstore.get_async(store, big)


def test_s3cmd(objectserver: ObjectServer, object_volume: StoreConfig, tmp_path: Path) -> None:
    host = object_volume.endpoint.removeprefix("http://")
    configuration = tmp_path / "s3cfg"
    configuration.write_text(
        f"[default]\naccess_key = {object_volume.access_key}\n"
        f"secret_key = {object_volume.secret_key}\nhost_base = {host}\nhost_bucket = {host}\n"
        f"bucket_location = {object_volume.region}\nuse_https = False\nsignature_v2 = False\n"
        "check_ssl_certificate = False\nmultipart_chunk_size_mb = 5\n"
    )
    configuration.chmod(0o600)

    def s3cmd(*arguments: str) -> str:
        command = ["s3cmd", "-c", str(configuration), "--no-progress", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
        return done.stdout

    base = f"s3://{object_volume.bucket}/{object_volume.prefix}"
    tree = tmp_path / "tree"
    (tree / "sub dir").mkdir(parents=True)
    (tree / "small").write_bytes(b"small")
    (tree / "sub dir" / "é+&").write_bytes(os.urandom(200_000))
    (tree / "big").write_bytes(os.urandom(12 * MIB))
    s3cmd("put", "--recursive", f"{tree}/", f"{base}/t/")
    assert f"{base}/t/big" in s3cmd("ls", "--recursive", f"{base}/")
    assert f"{base}/t/sub dir/" in s3cmd("ls", f"{base}/t/")
    back = tmp_path / "back"
    back.mkdir()
    s3cmd("get", "--recursive", f"{base}/t/", f"{back}/")
    for name in ("small", "sub dir/é+&", "big"):
        assert (back / name).read_bytes() == (tree / name).read_bytes()
    s3cmd("cp", f"{base}/t/small", f"{base}/t/copy")
    s3cmd("get", f"{base}/t/copy", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"small"
    s3cmd("del", "--recursive", "--force", f"{base}/")
    assert s3cmd("ls", "--recursive", f"{base}/") == ""
