"""Several SSH keys of one account, with the stock OpenSSH client."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, cast

from boxd.boxes.limits.account_keys import AccountKeys
from tests.harness.ssh.openssh import HOST, running

if TYPE_CHECKING:
    from tests.harness.ssh.frontdoor import Entrance
    from tests.harness.ssh.openssh import Client

END_S = 1.0
"""Seconds within which the connections of a removed key must end."""


async def linked(front_door: Entrance, name: str) -> Client:
    """Return a client whose key has joined the account of the front door's client."""
    code = (await front_door.client.run("cli", f"keys add {name}")).text.strip()
    client = front_door.new_client(name)
    done = await client.run("cli", f"keys confirm {code}")
    assert done.status == 0, done.errors
    assert done.text == f"{name} joined the account {front_door.client.fingerprint()}\n"
    return client


async def whoami(client: Client) -> dict[str, str]:
    """Return the identity that a client has."""
    done = await client.run("cli", "whoami --json")
    assert done.status == 0, done.errors
    found: dict[str, str] = json.loads(done.text)
    return found


async def test_a_new_key_proves_itself_before_it_counts(front_door: Entrance) -> None:
    owner, account = front_door.client, front_door.client.fingerprint()
    assert (await owner.run("web", "true")).status == 0
    added = await owner.run("cli", "keys add laptop")
    assert added.status == 0
    code = added.text.strip()
    assert f"-i NEWKEY -o IdentitiesOnly=yes -p {owner.port} cli@{HOST} keys confirm {code}" in (
        added.errors
    )
    laptop = front_door.new_client("laptop")
    assert (await whoami(laptop))["fingerprint"] == laptop.fingerprint()
    done = await laptop.run("cli", f"keys confirm {code}")
    assert (done.status, done.text) == (0, f"laptop joined the account {account}\n")
    assert "connect again" in done.errors
    who = await whoami(laptop)
    assert (who["fingerprint"], who["key"]) == (account, laptop.fingerprint())
    assert "web" in (await laptop.run("cli", "ls")).text
    assert (await laptop.run("web", "echo in")).text == "in\n"
    (box,) = await front_door.store.all_boxes()
    assert box.owner == account
    listed = (await owner.run("cli", "keys ls")).text.splitlines()
    assert listed[0].split() == ["NAME", "FINGERPRINT", "ADDED", "LAST", "USED"]
    assert [line.split()[:2] for line in listed[1:]] == [
        ["first", account],
        ["laptop", laptop.fingerprint()],
    ]
    key = next(key for key in await front_door.store.account_keys() if key.name == "laptop")
    public = (laptop.directory / "key.pub").read_text().split()[:2]
    assert key.public_key.split() == public
    again = await front_door.new_client("other").run("cli", f"keys confirm {code}")
    assert (again.status, again.text) == (1, "")
    assert "this code is not valid" in again.errors


async def test_a_removed_key_is_cut_off_and_told_why(front_door: Entrance) -> None:
    owner, laptop = front_door.client, await linked(front_door, "laptop")
    async with running(
        ["ssh", *laptop.options(), "-l", "web", HOST, "echo in; exec sleep 1000"]
    ) as session:
        assert session.stdout is not None
        assert session.stderr is not None
        assert await session.stdout.readline() == b"in\n"
        removed = await owner.run("cli", "keys rm laptop")
        assert removed.text == f"removed laptop {laptop.fingerprint()}\n"
        async with asyncio.timeout(END_S):
            errors = await session.stderr.read()
        assert b"this key was removed from its account" in errors
    for user, line in (("web", "true"), ("cli", "ls"), ("images", "x"), ("jump", "true")):
        done = await laptop.run(user, line)
        assert (done.status, done.text) == (255, "")
        assert "this key was removed from its account" in done.errors
    again = AccountKeys(front_door.store)  # what a restarted service knows
    await again.start()
    assert again.account_of(laptop.fingerprint()) is None
    assert (await owner.run("web", "echo in")).text == "in\n"


async def test_the_first_key_rotates_and_the_account_stays(front_door: Entrance) -> None:
    owner, account = front_door.client, front_door.client.fingerprint()
    await owner.run("web", "true")
    key = (await owner.run("cli", "apikeys create ci")).text.strip()
    refused = await owner.run("cli", "keys rm first")
    assert refused.status == 1
    assert "only key" in refused.errors
    laptop = await linked(front_door, "laptop")
    own = await owner.run("cli", "keys rm first")
    assert "connected with this key" in own.errors
    async with owner.master("cli") as shared:
        assert (await owner.run("cli", *shared, "ls")).status == 0
        done = await laptop.run("cli", f"keys rm {account}")
        assert (done.status, done.text) == (0, f"removed first {account}\n")
        assert (await owner.run("cli", "-o", "ControlMaster=no", *shared, "ls")).status == 255
    done = await owner.run("cli", "ls")
    assert (done.status, done.text) == (255, "")
    assert "this key was removed from its account" in done.errors
    assert (await whoami(laptop))["fingerprint"] == account
    assert (await laptop.run("web", "echo in")).text == "in\n"
    assert (await front_door.operations.keys.principal_of_key(key)).owner == account


async def test_a_recovery_code_opens_the_account_to_a_new_key(front_door: Entrance) -> None:
    owner, account = front_door.client, front_door.client.fingerprint()
    created = await owner.run("cli", "recovery create")
    codes = created.text.split()
    assert len(codes) == 8
    new = front_door.new_client("new")
    wrong = await new.run("cli", "recovery use AAAA-BBBB")
    assert (wrong.status, wrong.text) == (1, "")
    assert "not valid" in wrong.errors
    done = await new.run("cli", "recovery use", stdin=f"{codes[3]}\n".encode())
    assert (done.status, done.text) == (0, f"recovered joined the account {account}\n")
    assert (await whoami(new))["fingerprint"] == account
    assert (await new.run("cli", "recovery ls")).text == "codes left: 7\n"
    admin = front_door.new_client("admin")
    front_door.administrators.add(admin.fingerprint())
    audit = (await admin.run("sudo", "audit")).text
    assert "cli: recovery use" in audit
    assert new.fingerprint() in audit
    assert not any(code in audit for code in codes)


async def test_a_key_that_owns_something_joins_no_account(front_door: Entrance) -> None:
    code = (await front_door.client.run("cli", "keys add other")).text.strip()
    other = front_door.new_client("other")
    assert (await other.run("own", "true")).status == 0
    done = await other.run("cli", f"keys confirm {code}")
    assert (done.status, done.text) == (1, "")
    assert "account of its own" in done.errors
    assert (await whoami(other))["fingerprint"] == other.fingerprint()


async def test_old_connections_of_a_joined_key_end(front_door: Entrance) -> None:
    """They have the rights of the key's own empty account, which nobody can open any more."""
    code = (await front_door.client.run("cli", "keys add laptop")).text.strip()
    laptop = front_door.new_client("laptop")
    async with laptop.second("cli") as idle, laptop.second("cli") as proving:
        done = await proving.run(f"keys confirm {code}", check=False)
        assert done.exit_status == 0
        async with asyncio.timeout(END_S):
            await idle.wait_closed()
        stale = await proving.run("ls", check=False)
        assert stale.exit_status == 255
        assert b"connect again" in cast("bytes", stale.stderr)


async def test_an_administrator_is_a_key_and_not_an_account(front_door: Entrance) -> None:
    front_door.administrators.add(front_door.client.fingerprint())
    laptop = await linked(front_door, "laptop")
    assert (await front_door.client.run("sudo", "owners")).status == 0
    refused = await laptop.run("sudo", "owners")
    assert refused.status == 255
    assert "Permission denied" in refused.errors
    front_door.administrators.add(laptop.fingerprint())
    assert (await laptop.run("sudo", "owners")).status == 0
    (entry, *_) = await front_door.store.audits(1)
    assert entry.admin == laptop.fingerprint()
    # The key leaves the account, and stays an administrator's key until the operator removes it.
    assert (await front_door.client.run("cli", "keys rm laptop")).status == 0
    assert (await laptop.run("sudo", "owners")).status == 0
    assert (await laptop.run("cli", "ls")).status == 255


async def test_a_name_is_shown_to_its_owner_and_the_operator(front_door: Entrance) -> None:
    owner, admin = front_door.client, front_door.new_client("admin")
    front_door.administrators.add(admin.fingerprint())
    named = await owner.run("cli", "account name 'Alice Doe'")
    assert (named.status, named.text) == (0, "the account is named Alice Doe\n")
    assert (await whoami(owner))["name"] == "Alice Doe"
    assert "Alice Doe" in (await admin.run("sudo", "owners")).text


async def test_a_confidential_box_accepts_only_the_key_that_created_it(
    front_door: Entrance,
) -> None:
    owner, laptop = front_door.client, await linked(front_door, "laptop")
    async with running(owner.jump("secret", "echo in")) as session:
        assert session.stdout is not None
        assert await session.stdout.read() == b"in\n"
    laptop.log_level = "INFO"  # the level at which OpenSSH shows a refusal
    async with running(laptop.jump("secret", "echo in")) as session:
        assert session.stderr is not None
        errors = await session.stderr.read()
    assert b"accepts only the key that created it" in errors
    assert (await laptop.run("cli", "rm secret")).status == 0
