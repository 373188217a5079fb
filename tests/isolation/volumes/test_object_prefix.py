"""An attacker with one volume's object credential reaches nothing of another volume."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer
from tests.harness.loop import run
from tests.harness.servers.s3raw import Answer, exchange, send, signed_headers

if TYPE_CHECKING:
    from tests.harness.servers.objectserver import ObjectServer
    from wrkfs.config import StoreConfig

BODY = b"the victim's bytes"


@pytest.fixture
def attacker(objectserver: ObjectServer) -> StoreConfig:
    return objectserver.volume()


@pytest.fixture
def victim(objectserver: ObjectServer) -> StoreConfig:
    store = objectserver.volume()
    assert send(store, "PUT", path(store, "secret"), body=BODY).status == 200
    return store


def path(store: StoreConfig, name: str) -> str:
    return f"/{store.bucket}/{store.prefix}/{name}"


def untouched(victim: StoreConfig) -> None:
    answer = send(victim, "GET", path(victim, "secret"))
    assert (answer.status, answer.body) == (200, BODY)
    listed = send(victim, "GET", f"/{victim.bucket}?list-type=2&prefix={victim.prefix}%2F")
    assert listed.body.count(b"<Key>") == 1


def essence(answer: Answer) -> tuple[int, str, bytes, dict[str, str]]:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return answer.status, answer.code, answer.body, headers


@pytest.mark.promise("S1")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_foreign_keys_are_denied_alike_whether_they_exist_or_not(
    attacker: StoreConfig, victim: StoreConfig, method: str
) -> None:
    existing = send(attacker, method, path(victim, "secret"))
    absent = send(attacker, method, path(victim, "absent"))
    nobody = send(attacker, method, f"/{attacker.bucket}/nobody/at-all")
    assert existing.status == 403
    assert essence(existing) == essence(absent) == essence(nobody)
    untouched(victim)


@pytest.mark.promise("S1")
def test_prefix_tricks(attacker: StoreConfig, victim: StoreConfig) -> None:
    mine, theirs, bucket = attacker.prefix, victim.prefix, attacker.bucket
    tricks = (
        f"/{bucket}/{mine}/../{theirs}/secret",
        f"/{bucket}/{mine}%2F..%2F{theirs}%2Fsecret",
        f"/{bucket}/{mine}/%2E%2E/{theirs}/secret",
        f"/{bucket}/{mine}/..%2f{theirs}/secret",
        f"/{bucket}/{mine}/%252e%252e/{theirs}/secret",
    )
    for target in tricks:
        # Such a key is a name like any other, below the attacker's own prefix.
        assert send(attacker, "GET", target).code == "NoSuchKey"
    for target in tricks:
        assert send(attacker, "PUT", target, body=b"mine").status == 200
        assert send(attacker, "GET", target).body == b"mine"
        untouched(victim)
    for target in (
        f"/{bucket}/{mine}x/secret",
        f"/{bucket}/{mine}",
        f"/{bucket}/{mine.upper()}/secret",
        f"/{bucket}//{mine}/secret",
        f"/{bucket}/./{mine}/secret",
        f"/{bucket}/%00{mine}/secret",
        f"/{bucket}/{mine[:-1]}/secret",
        f"/{bucket}/\\{mine}/secret",
    ):
        for method in ("GET", "PUT", "DELETE"):
            assert send(attacker, method, target).status == 403, target
    assert send(attacker, "GET", f"/{bucket}/{mine}/%ff").status == 400
    assert send(attacker, "PUT", f"/{bucket}/{mine}/%00").status == 400
    untouched(victim)


@pytest.mark.promise("S1")
def test_unicode_forms_of_a_prefix_are_other_prefixes(objectserver: ObjectServer) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    store = objectserver.volume(composed)
    assert send(store, "PUT", "/drive/caf%C3%A9/x", body=b"1").status == 200
    other = objectserver.volume(decomposed)
    assert send(other, "GET", "/drive/caf%C3%A9/x").status == 403
    assert send(other, "GET", "/drive/cafe%CC%81/x").code == "NoSuchKey"


@pytest.mark.promise("S1")
def test_listings_stay_below_the_prefix(attacker: StoreConfig, victim: StoreConfig) -> None:
    bucket, mine, theirs = attacker.bucket, attacker.prefix, victim.prefix
    assert send(attacker, "PUT", path(attacker, "own"), body=b"x").status == 200
    for query in (
        "",
        "list-type=2",
        "list-type=2&prefix=",
        f"list-type=2&prefix={theirs}%2F",
        f"list-type=2&prefix={theirs}",
        "list-type=2&delimiter=%2F",
        f"list-type=2&prefix={mine}",
        f"list-type=2&prefix={mine[:5]}&delimiter=%2F",
        f"prefix={theirs}%2F",
        f"marker={theirs}",
        "uploads",
        f"uploads&prefix={theirs}%2F",
    ):
        target = f"/{bucket}?{query}" if query else f"/{bucket}"
        answer = send(attacker, "GET", target)
        assert (answer.status, answer.code) == (403, "AccessDenied"), query
        assert theirs.encode() not in answer.body
    low, high = sorted([mine, theirs])
    token = base64.urlsafe_b64encode(f"{theirs}/secret".encode()).decode()
    for query, code in (
        (f"list-type=2&prefix={mine}%2F&start-after={low}", ""),
        (f"list-type=2&prefix={mine}%2F&start-after={high}%2F~", ""),
        (f"prefix={mine}%2F&marker={low}", ""),
        (f"continuation-token={token}&list-type=2&prefix={mine}%2F", "InvalidArgument"),
        (f"continuation-token=%25&list-type=2&prefix={mine}%2F", "InvalidArgument"),
    ):
        answer = send(attacker, "GET", f"/{bucket}?{query}")
        assert answer.code == code, query
        assert b"secret" not in answer.body
    untouched(victim)


@pytest.mark.promise("S1")
def test_bucket_acl_and_policy_verbs_are_refused(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    bucket = attacker.bucket
    for method, target in (
        ("GET", "/"),
        ("PUT", f"/{bucket}"),
        ("DELETE", f"/{bucket}"),
        ("PUT", "/another"),
        ("GET", "/another?list-type=2"),
        ("GET", f"/{bucket}?acl"),
        ("PUT", f"/{bucket}?acl"),
        ("PUT", f"/{bucket}?policy"),
        ("GET", f"/{bucket}?policy"),
        ("GET", f"/{bucket}?versions"),
        ("PUT", f"/{bucket}?versioning"),
        ("PUT", f"/{bucket}?lifecycle"),
        ("GET", f"{path(victim, 'secret')}?acl"),
        ("PUT", f"{path(attacker, 'own')}?acl"),
        ("POST", path(attacker, "own")),
    ):
        answer = send(attacker, method, target)
        assert answer.status in (403, 501), (method, target)
        assert b"victim" not in answer.body
    untouched(victim)


@pytest.mark.promise("S1")
def test_delete_many_refuses_foreign_keys_one_by_one(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    assert send(attacker, "PUT", path(attacker, "own"), body=b"x").status == 200
    keys = [f"{attacker.prefix}/own", f"{victim.prefix}/secret", f"{victim.prefix}/absent"]
    rows = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    answer = send(
        attacker, "POST", f"/{attacker.bucket}?delete", body=f"<Delete>{rows}</Delete>".encode()
    )
    assert answer.status == 200
    deleted, _, errors = answer.body.partition(b"<Error>")
    assert deleted.count(b"<Deleted>") == 1
    assert errors.count(b"AccessDenied") == 2
    assert send(attacker, "GET", path(attacker, "own")).code == "NoSuchKey"
    untouched(victim)


@pytest.mark.promise("S1")
def test_copies_of_foreign_objects(attacker: StoreConfig, victim: StoreConfig) -> None:
    for source in (
        f"/{victim.bucket}/{victim.prefix}/secret",
        f"{victim.bucket}/{victim.prefix}/secret",
        f"{victim.bucket}/{victim.prefix}/absent",
        f"{victim.bucket}/{victim.prefix}%2Fsecret",
        f"other/{attacker.prefix}/x",
        "",
    ):
        headers = {"x-amz-copy-source": source}
        answer = send(attacker, "PUT", path(attacker, "copy"), headers=headers)
        assert answer.status == 403, source
        assert send(attacker, "GET", path(attacker, "copy")).code == "NoSuchKey"
    created = send(attacker, "POST", path(attacker, "copy") + "?uploads")
    upload = created.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    part = send(
        attacker,
        "PUT",
        f"{path(attacker, 'copy')}?partNumber=1&uploadId={upload}",
        headers={"x-amz-copy-source": f"/{victim.bucket}/{victim.prefix}/secret"},
    )
    assert part.status == 403
    untouched(victim)


@pytest.mark.promise("S1")
def test_uploads_belong_to_the_key_they_were_begun_for(
    attacker: StoreConfig, victim: StoreConfig
) -> None:
    created = send(victim, "POST", path(victim, "big") + "?uploads")
    upload = created.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    part = f"partNumber=1&uploadId={upload}"
    assert send(victim, "PUT", f"{path(victim, 'big')}?{part}", body=b"p").status == 200
    for method, target in (
        ("PUT", f"{path(victim, 'big')}?{part}"),
        ("GET", f"{path(victim, 'big')}?uploadId={upload}"),
        ("DELETE", f"{path(victim, 'big')}?uploadId={upload}"),
        ("POST", f"{path(victim, 'big')}?uploadId={upload}"),
    ):
        assert send(attacker, method, target, body=b"").status == 403
    for method, target in (
        ("PUT", f"{path(attacker, 'big')}?{part}"),
        ("GET", f"{path(attacker, 'big')}?uploadId={upload}"),
        ("DELETE", f"{path(attacker, 'big')}?uploadId={upload}"),
        ("POST", f"{path(attacker, 'big')}?uploadId={upload}"),
        ("GET", f"{path(attacker, 'big')}?uploadId=..%2F{upload}"),
        ("GET", f"{path(attacker, 'big')}?uploadId={'0' * 32}"),
    ):
        assert send(attacker, method, target).code == "NoSuchUpload"
    listed = send(attacker, "GET", f"/{attacker.bucket}?uploads&prefix={attacker.prefix}%2F")
    assert upload.encode() not in listed.body
    kept = send(victim, "GET", f"{path(victim, 'big')}?uploadId={upload}")
    assert kept.body.count(b"<Part>") == 1
    assert send(victim, "DELETE", f"{path(victim, 'big')}?uploadId={upload}").status == 204


@pytest.mark.promise("S1")
def test_a_revoked_credential_ends_at_once_and_its_twin_lives(
    objectserver: ObjectServer,
) -> None:
    first = objectserver.volume()
    second = objectserver.volume(first.prefix)
    assert send(first, "PUT", path(first, "x"), body=b"1").status == 200
    assert send(second, "GET", path(first, "x")).body == b"1"
    run(EmbeddedObjectServer(objectserver.directory).revoke(first.access_key))
    assert send(first, "GET", path(first, "x")).status == 403
    assert send(second, "GET", path(first, "x")).body == b"1"


@pytest.mark.promise("S1")
def test_nobody_else_signs_for_a_key(attacker: StoreConfig, victim: StoreConfig) -> None:
    forged = replace(victim, secret_key=attacker.secret_key)
    assert send(forged, "GET", path(victim, "secret")).code == "SignatureDoesNotMatch"
    unknown = replace(attacker, access_key="0" * 32)
    assert send(unknown, "GET", path(victim, "secret")).code == "SignatureDoesNotMatch"
    plain = [("Host", victim.endpoint.removeprefix("http://"))]
    assert exchange(victim, "GET", path(victim, "secret"), plain, b"").status == 403
    head = signed_headers(attacker, "GET", path(attacker, "secret"))
    moved = exchange(victim, "GET", path(victim, "secret"), list(head.items()), b"")
    assert moved.code == "SignatureDoesNotMatch"
    untouched(victim)


@pytest.mark.promise("S1")
def test_every_volume_against_others(objectserver: ObjectServer) -> None:
    stores = [objectserver.volume() for _ in range(12)]
    for store in stores:
        assert send(store, "PUT", path(store, "o"), body=store.prefix.encode()).status == 200
    for store in stores:
        for other in stores:
            answer = send(store, "GET", path(other, "o"))
            if store is other:
                assert answer.body == store.prefix.encode()
            else:
                assert answer.status == 403
