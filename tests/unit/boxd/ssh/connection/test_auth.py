"""Which keys are accepted as identities, and what authentication binds."""

from __future__ import annotations

import asyncssh
import pytest

from boxd.principal import Principal, ProvedKey
from boxd.ssh.connection.auth import MAX_ATTEMPTS, MAX_REJECTED, Authentication, fingerprint_of_key


def key(algorithm: str) -> asyncssh.SSHKey:
    """Return a new public key in the form that the listener receives."""
    return asyncssh.import_public_key(asyncssh.generate_private_key(algorithm).export_public_key())


def completed(auth: Authentication) -> Principal:
    """Return the principal of an authentication that a key completed."""
    principal = auth.complete()
    assert principal is not None
    return principal


def rsa(bits: int) -> asyncssh.SSHKey:
    """Return a new RSA public key of this size."""
    private = asyncssh.generate_private_key("ssh-rsa", key_size=bits)
    return asyncssh.import_public_key(private.export_public_key())


def test_the_owner_is_the_fingerprint() -> None:
    public = key("ssh-ed25519")
    assert fingerprint_of_key(public) == public.get_fingerprint("sha256")


def test_rsa_keys_need_2048_bits() -> None:
    assert fingerprint_of_key(rsa(2048)) is not None
    assert fingerprint_of_key(rsa(1024)) is None
    assert fingerprint_of_key(rsa(2032)) is None


def test_dsa_keys_are_rejected() -> None:
    assert fingerprint_of_key(key("ssh-dss")) is None


@pytest.mark.parametrize("algorithm", [b"rsa-sha2-256", b"rsa-sha2-512", b"ssh-rsa"])
def test_an_accepted_rsa_key_rejects_sha1_signatures(algorithm: bytes) -> None:
    private = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    public = asyncssh.import_public_key(private.export_public_key())
    signature = private.sign(b"data", algorithm)
    assert public.verify(b"data", signature)
    assert fingerprint_of_key(public) is not None
    assert public.verify(b"data", signature) == (algorithm != b"ssh-rsa")
    # Other key objects of the library do not change.
    assert asyncssh.import_public_key(private.export_public_key()).verify(b"data", signature)


def test_the_last_offered_pair_is_bound() -> None:
    auth = Authentication()
    assert auth.offer("web", key("ssh-ed25519"))
    own = key("ecdsa-sha2-nistp256")
    assert auth.offer("cli", own)
    principal = completed(auth)
    assert principal == auth.principal
    assert (principal.owner, principal.scope, principal.via) == (
        fingerprint_of_key(own),
        None,
        "ssh_key",
    )
    assert auth.username == "cli"
    assert auth.public_key == own.export_public_key().decode().strip()


def test_a_rejected_key_is_not_bound() -> None:
    auth = Authentication()
    assert auth.offer("web", key("ssh-ed25519"))
    assert not auth.offer("web", key("ssh-dss"))
    with pytest.raises(RuntimeError):
        auth.complete()
    assert auth.principal is None
    with pytest.raises(RuntimeError):
        _ = auth.public_key


def signed(private: asyncssh.SSHKey) -> tuple[asyncssh.SSHKey, bytes]:
    """Return the public key in the form that the listener receives, and a valid signature."""
    public = asyncssh.import_public_key(private.export_public_key())
    return public, private.sign(b"data", private.algorithm)


@pytest.mark.parametrize("user", ["sudo", "SUDO"])
def test_only_administrators_can_authenticate_as_sudo(user: str) -> None:
    administrators: set[str] = set()
    auth = Authentication(administrators)
    private = asyncssh.generate_private_key("ssh-ed25519")
    for other in ("web", "sudoku", "cli"):
        public, signature = signed(private)
        assert auth.offer(other, public)
        assert public.verify(b"data", signature)
        assert completed(auth).via == "ssh_key"
    public, signature = signed(private)
    assert auth.offer(user, public), "an offer must not reveal who is an administrator"
    assert not public.verify(b"data", signature)
    assert completed(auth).via == "ssh_key", "even a verified signature gives no access"
    administrators.add(public.get_fingerprint("sha256"))
    public, signature = signed(private)
    assert auth.offer(user, public)
    assert not public.verify(b"other data", signature)
    assert public.verify(b"data", signature)
    assert auth.complete() == Principal(public.get_fingerprint("sha256"), None, "admin")


def test_a_linked_key_opens_its_account_and_no_administrators_console() -> None:
    linked, administrators = key("ssh-ed25519"), {"SHA256:account"}
    accounts: dict[str, str | None] = {linked.get_fingerprint("sha256"): "SHA256:account"}
    auth = Authentication(administrators, accounts.get, "198.51.100.7")
    assert auth.offer("web", linked)
    line = linked.export_public_key().decode().strip()
    proved = ProvedKey(linked.get_fingerprint("sha256"), line, "198.51.100.7")
    assert completed(auth) == Principal("SHA256:account", None, "ssh_key", proved=proved)
    assert auth.public_key == line
    # The account of the key is an administrator's key, but this key is not.
    assert auth.offer("sudo", linked)
    assert completed(auth).via == "ssh_key"


def test_an_administrators_key_has_its_rights_whatever_account_it_opens() -> None:
    for account in ("SHA256:account", None):
        public, signature = signed(asyncssh.generate_private_key("ssh-ed25519"))
        fingerprint = public.get_fingerprint("sha256")
        accounts = {fingerprint: account}
        auth = Authentication({fingerprint}, accounts.get)
        assert auth.offer("sudo", public)
        assert public.verify(b"data", signature)
        assert auth.complete() == Principal(fingerprint, None, "admin")


def test_a_key_without_an_account_has_no_principal() -> None:
    removed = key("ssh-ed25519")
    auth = Authentication(account_of={removed.get_fingerprint("sha256"): None}.get)
    assert auth.offer("web", removed)
    assert auth.complete() is None
    with pytest.raises(RuntimeError):
        _ = auth.public_key


def test_attempts_run_out() -> None:
    weak, good = key("ssh-dss"), key("ssh-ed25519")
    auth = Authentication()
    for _ in range(MAX_REJECTED):
        assert not auth.exhausted
        auth.offer("web", weak)
    assert auth.exhausted
    auth = Authentication()
    for _ in range(MAX_ATTEMPTS):
        auth.offer("web", good)
        assert not auth.exhausted
    auth.offer("web", good)
    assert auth.exhausted
