"""An attacker with one volume's object credential and an ordinary S3 client (boto3)."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from boxd.embedded.objectstore import EmbeddedObjectServer
from tests.harness.loop import run
from tests.harness.servers.s3raw import Answer, exchange, send, signed_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import StoreConfig

S3Client: TypeAlias = Any
"""boto3 makes its clients at run time; they have no class to name."""
BODY = b"the victim's bytes"
FORMAT = "%Y%m%dT%H%M%SZ"

pytestmark = pytest.mark.promise("S1")


@pytest.fixture
def attacker(objectserver: ObjectServer) -> StoreConfig:
    return objectserver.volume()


@pytest.fixture
def victim(objectserver: ObjectServer) -> Iterator[StoreConfig]:
    """A volume with one object, which must be there unchanged at the end."""
    store = objectserver.volume()
    with client(store) as s3:
        s3.put_object(Bucket=store.bucket, Key=f"{store.prefix}/secret", Body=BODY)
        yield store
        found = s3.get_object(Bucket=store.bucket, Key=f"{store.prefix}/secret")
        assert found["Body"].read() == BODY
        listed = s3.list_objects_v2(Bucket=store.bucket, Prefix=f"{store.prefix}/")
        assert listed["KeyCount"] == 1


@contextmanager
def client(store: StoreConfig) -> Iterator[S3Client]:
    """boto3 with a volume's credential."""
    made = boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    try:
        yield made
    finally:
        made.close()


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    """Status and code."""
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_every_verb_on_foreign_keys(attacker: StoreConfig, victim: StoreConfig) -> None:
    bucket, theirs, own = victim.bucket, f"{victim.prefix}/secret", f"{attacker.prefix}/own"
    source = {"Bucket": bucket, "Key": theirs}
    with client(attacker) as s3:
        s3.put_object(Bucket=bucket, Key=own, Body=b"x")
        upload = s3.create_multipart_upload(Bucket=bucket, Key=own)["UploadId"]
        attempts: dict[str, Callable[[], object]] = {
            "get": lambda: s3.get_object(Bucket=bucket, Key=theirs),
            "range": lambda: s3.get_object(Bucket=bucket, Key=theirs, Range="bytes=0-1"),
            "head": lambda: s3.head_object(Bucket=bucket, Key=theirs),
            "put": lambda: s3.put_object(Bucket=bucket, Key=theirs, Body=b"x"),
            "delete": lambda: s3.delete_object(Bucket=bucket, Key=theirs),
            "copy from": lambda: s3.copy_object(Bucket=bucket, Key=own, CopySource=source),
            "copy to": lambda: s3.copy_object(
                Bucket=bucket, Key=theirs, CopySource={"Bucket": bucket, "Key": own}
            ),
            "part copy": lambda: s3.upload_part_copy(
                Bucket=bucket, Key=own, UploadId=upload, PartNumber=1, CopySource=source
            ),
            "begin": lambda: s3.create_multipart_upload(Bucket=bucket, Key=theirs),
            "part": lambda: s3.upload_part(
                Bucket=bucket, Key=theirs, UploadId=upload, PartNumber=1, Body=b"x"
            ),
            "complete": lambda: s3.complete_multipart_upload(
                Bucket=bucket,
                Key=theirs,
                UploadId=upload,
                MultipartUpload={"Parts": [{"ETag": '"0"', "PartNumber": 1}]},
            ),
            "abort": lambda: s3.abort_multipart_upload(Bucket=bucket, Key=theirs, UploadId=upload),
            "list": lambda: s3.list_objects_v2(Bucket=bucket, Prefix=f"{victim.prefix}/"),
            "list all": lambda: s3.list_objects_v2(Bucket=bucket),
            "list old": lambda: s3.list_objects(Bucket=bucket, Prefix=victim.prefix),
            "uploads": lambda: s3.list_multipart_uploads(Bucket=bucket),
            "buckets": lambda: s3.list_buckets(),
            "make bucket": lambda: s3.create_bucket(Bucket="another"),
            "drop bucket": lambda: s3.delete_bucket(Bucket=bucket),
        }
        for name, attempt in attempts.items():
            with pytest.raises(ClientError) as refused:
                attempt()
            assert refusal(refused)[0] in (403, 501), name
        many = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": own}, {"Key": theirs}]})
        assert [one["Key"] for one in many["Deleted"]] == [own]
        assert [(one["Key"], one["Code"]) for one in many["Errors"]] == [(theirs, "AccessDenied")]


def test_a_listing_goes_through_all_own_pages_and_no_foreign_key(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    own = [f"{attacker.prefix}/{number:03}" for number in range(25)]
    with client(attacker) as s3:
        for key in own:
            s3.put_object(Bucket=attacker.bucket, Key=key, Body=b"")
        pages = s3.get_paginator("list_objects_v2").paginate(
            Bucket=attacker.bucket,
            Prefix=f"{attacker.prefix}/",
            StartAfter="",
            PaginationConfig={"PageSize": 4},
        )
        assert [one["Key"] for page in pages for one in page.get("Contents", [])] == own
    with client(victim) as s3:
        theirs = s3.list_objects_v2(
            Bucket=victim.bucket, Prefix=f"{victim.prefix}/", MaxKeys=1, Delimiter="/"
        )
        assert theirs["KeyCount"] == 1


def dated(store: StoreConfig, when: datetime, method: str = "GET") -> Answer:
    """A request that was signed at another time."""
    word = hashlib.sha256(b"").hexdigest()
    target = f"/{store.bucket}/{store.prefix}/secret"
    request = AWSRequest(method, store.endpoint + target)
    request.headers["X-Amz-Content-SHA256"] = word
    signer = S3SigV4Auth(Credentials(store.access_key, store.secret_key), "s3", store.region)
    request.context["timestamp"] = stamp = when.strftime(FORMAT)
    request.headers["X-Amz-Date"] = stamp
    text = signer.string_to_sign(request, signer.canonical_request(request))
    scope = f"{store.access_key}/{signer.credential_scope(request)}"
    names = signer.signed_headers(signer.headers_to_sign(request))
    request.headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, "
        f"Signature={signer.signature(text, request)}"
    )
    place = [("Host", urlsplit(store.endpoint).netloc)]
    return exchange(store, method, target, [*place, *map(_text, request.headers.items())], b"")


def _text(pair: tuple[str, object]) -> tuple[str, str]:
    return pair[0], str(pair[1])


def test_signatures_of_another_time_are_refused(victim: StoreConfig) -> None:
    now = datetime.now(UTC)
    assert dated(victim, now).status == 200
    assert dated(victim, now - timedelta(minutes=10)).status == 200
    for off in (timedelta(minutes=16), timedelta(days=1), timedelta(days=-1), -timedelta(hours=1)):
        assert dated(victim, now + off).code in ("RequestTimeTooSkewed", "SignatureDoesNotMatch")


def test_what_is_not_signed_as_it_is_sent_is_refused(victim: StoreConfig) -> None:
    target = f"/{victim.bucket}/{victim.prefix}/new"
    good = signed_headers(victim, "PUT", target, body=b"abc")
    assert exchange(victim, "PUT", target, list(good.items()), b"abd").status == 400
    assert exchange(victim, "GET", target, list(good.items()), b"").status == 403
    moved = target.replace("new", "secret")
    assert exchange(victim, "PUT", moved, list(good.items()), b"abc").status == 403
    twice = [*good.items(), ("Authorization", good["Authorization"])]
    assert exchange(victim, "PUT", target, twice, b"abc").status in (400, 403)
    for name in ("X-Amz-Date", "X-Amz-Content-SHA256"):
        doubled = [*good.items(), (name, good[name])]
        assert exchange(victim, "PUT", target, doubled, b"abc").status in (400, 403), name
        missing = [(key, value) for key, value in good.items() if key != name]
        assert exchange(victim, "PUT", target, missing, b"abc").status in (400, 403), name
    both = f"{target}?X-Amz-Signature=0&X-Amz-Algorithm=AWS4-HMAC-SHA256"
    assert exchange(victim, "PUT", both, list(good.items()), b"abc").status in (400, 403)
    assert send(victim, "GET", target).code == "NoSuchKey", "none of them wrote anything"


def presigned(store: StoreConfig, *, method: str = "GET", seconds: int = 60) -> str:
    """A presigned target of the volume's object."""
    target = f"/{store.bucket}/{store.prefix}/secret"
    request = AWSRequest(method, store.endpoint + target)
    credentials = Credentials(store.access_key, store.secret_key)
    S3SigV4QueryAuth(credentials, "s3", store.region, expires=seconds).add_auth(request)
    return str(request.url).removeprefix(store.endpoint)


def test_presigned_targets_are_good_for_what_they_say_only(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    target = presigned(victim)
    host = [("Host", urlsplit(victim.endpoint).netloc)]
    first = exchange(victim, "GET", target, host, b"")
    if first.status != 200:
        # Refusing them altogether is an answer too, but then every one.
        assert first.status in (400, 403)
    else:
        assert first.body == BODY
    changed = {
        "method": ("DELETE", target),
        "key": ("GET", target.replace("secret", "other")),
        "expiry": ("GET", target.replace("X-Amz-Expires=60", "X-Amz-Expires=600000")),
        "prefix": ("GET", target.replace(victim.prefix, attacker.prefix)),
        "signature": ("GET", target[:-1] + ("1" if target[-1] == "0" else "0")),
        "added": ("GET", target + "&versionId=1"),
    }
    for name, (method, other) in changed.items():
        assert exchange(victim, method, other, host, b"").status in (400, 403), name
    short = presigned(victim, seconds=1)
    end = time.monotonic() + 30
    while exchange(victim, "GET", short, host, b"").status == 200:
        assert time.monotonic() < end, "it never expires"


def test_a_key_in_rotation_has_a_twin_until_it_is_revoked(objectserver: ObjectServer) -> None:
    old = objectserver.volume()
    new = objectserver.volume(old.prefix)
    with client(old) as before, client(new) as after:
        before.put_object(Bucket=old.bucket, Key=f"{old.prefix}/x", Body=b"1")
        after.put_object(Bucket=old.bucket, Key=f"{old.prefix}/y", Body=b"2")
        run(EmbeddedObjectServer(objectserver.directory).revoke(old.access_key))
        with pytest.raises(ClientError) as refused:
            before.get_object(Bucket=old.bucket, Key=f"{old.prefix}/x")
        assert refusal(refused)[0] == 403
        assert after.get_object(Bucket=old.bucket, Key=f"{old.prefix}/x")["Body"].read() == b"1"


def test_slow_senders_and_xml_bombs_disturb_nobody(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    bomb = (
        b'<!DOCTYPE a [<!ENTITY b "'
        + b"x" * 1000
        + b'">'
        + b"".join(
            b'<!ENTITY b%d "&b%s;&b%s;">' % (n, *(str(n - 1).encode() if n else b"",) * 2)
            for n in range(30)
        )
    )
    bomb += b"]><Delete><Object><Key>&b29;</Key></Object></Delete>"
    answer = send(attacker, "POST", f"/{attacker.bucket}?delete", body=bomb)
    assert answer.status == 400
    place = urlsplit(victim.endpoint)
    slow = []
    try:
        for _ in range(200):
            slow.append(socket.create_connection((place.hostname or "", place.port or 0), 10))
            slow[-1].sendall(b"PUT /" + attacker.bucket.encode() + b"/x HTTP/1.1\r\nHost: x\r\n")
        assert send(victim, "GET", f"/{victim.bucket}/{victim.prefix}/secret").body == BODY
    finally:
        for one in slow:
            one.close()


def test_keys_of_both_at_once_never_mix(attacker: StoreConfig, victim: StoreConfig) -> None:
    errors: list[BaseException] = []

    def work(store: StoreConfig) -> None:
        try:
            with client(store) as s3:
                for number in range(20):
                    key = f"{store.prefix}/same{number}"
                    s3.put_object(Bucket=store.bucket, Key=key, Body=store.prefix.encode())
                    got = s3.get_object(Bucket=store.bucket, Key=key)["Body"].read()
                    assert got == store.prefix.encode()
                    s3.delete_object(Bucket=store.bucket, Key=key)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in (attacker, victim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
