"""External object stores: the file that describes them, and the check at start."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.secret import Secret
from boxd.workspaces.credentials import ExternalStore, RandomPrefixes, StoredCredential

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer

ADMIN = {"access_key": "admin-key", "secret_key": "admin-secret"}
BASE: dict[str, object] = {
    "endpoint": "https://s3.example",
    "bucket": "b",
    "region": "r",
    "admin": ADMIN,
}
POOL = [{"prefix": f"vol/{n}", "access_key": f"k{n}", "secret_key": f"s{n}"} for n in range(2)]


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)
    return path


async def test_volumes_take_the_operators_credentials_in_turn(tmp_path: Path) -> None:
    store = ExternalStore.from_file(write(tmp_path / "s3", {**BASE, "volumes": POOL}))
    assert "admin-secret" not in repr(store)
    assert store.choose([]) == "vol/0"
    assert store.choose(["vol/0"]) == "vol/1"
    assert await store.issue("vol/1") == ("k1", Secret("s1"))
    with pytest.raises(Unavailable, match="no free volume credential"):
        store.choose(["vol/0", "vol/1"])
    await store.revoke("k1")
    assert await store.credentials() == []


async def test_without_volumes_all_share_the_administrators(tmp_path: Path) -> None:
    store = ExternalStore.from_file(write(tmp_path / "s3", BASE))
    prefix = store.choose([])
    assert prefix != store.choose([])
    assert await store.issue(prefix) == ("admin-key", Secret("admin-secret"))
    assert len(RandomPrefixes().choose([])) == 33


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({**BASE, "extra": 1}, "unknown field extra"),
        ({"bucket": "b"}, "missing field"),
        ({**BASE, "admin": "x"}, "malformed"),
        ({**BASE, "admin": {"access_key": "a"}}, "malformed"),
        ({**BASE, "bucket": 5}, "malformed"),
        ({**BASE, "volumes": [{**POOL[0], "prefix": "a/"}]}, "malformed"),
        ({**BASE, "volumes": [{**POOL[0], "prefix": ""}]}, "malformed"),
        ({**BASE, "volumes": "x"}, "malformed"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: object, problem: str) -> None:
    with pytest.raises(Unavailable, match=problem) as error:
        ExternalStore.from_file(write(tmp_path / "s3", content))
    assert "secret" not in str(error.value).replace("secret_key", "")


def test_a_file_open_to_others_or_absent_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s3", BASE)
    path.chmod(0o644)
    with pytest.raises(Unavailable, match="chmod 600"):
        ExternalStore.from_file(path)
    with pytest.raises(Unavailable, match="No such file"):
        ExternalStore.from_file(tmp_path / "absent")


def described(server: ObjectServer, path: Path) -> ExternalStore:
    endpoint = server.endpoint
    admin = {"access_key": endpoint.access_key, "secret_key": endpoint.secret.reveal()}
    content = {
        "endpoint": endpoint.url,
        "bucket": endpoint.bucket,
        "region": endpoint.region,
        "admin": admin,
    }
    return ExternalStore.from_file(write(path, content))


async def test_the_check_passes_on_a_working_store(
    objectserver: ObjectServer, tmp_path: Path
) -> None:
    await described(objectserver, tmp_path / "s3").check()


async def test_the_check_names_the_step_that_fails(
    objectserver: ObjectServer, tmp_path: Path
) -> None:
    store = described(objectserver, tmp_path / "s3")
    wrong = replace(store, admin=StoredCredential(store.admin.access_key, Secret("wrong")))
    with pytest.raises(Unavailable, match=r"cannot reach bucket drive .*403"):
        await wrong.check()
    volume = objectserver.volume()
    confined = replace(store, admin=StoredCredential(volume.access_key, Secret(volume.secret_key)))
    with pytest.raises(Unavailable, match=r"cannot write to bucket drive .*AccessDenied"):
        await confined.check()
    nowhere = replace(store, target=replace(store.target, endpoint="http://127.0.0.1:1"))
    with pytest.raises(Unavailable, match="cannot reach"):
        await nowhere.check()
