"""SSH algorithms that the daemon's SSH server and a confidential box's own server offer.

Tests compare them with the committed policy of ssh-audit.
"""

KEX = ("curve25519-sha256", "curve25519-sha256@libssh.org", "mlkem768x25519-sha256")
"""The client's order decides. Ours begins like Dropbear's: Dropbear sends its first message before
it knows the choice, and that guess counts as wrong unless both lists begin alike."""
CIPHERS = (
    "chacha20-poly1305@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-gcm@openssh.com",
    "aes256-ctr",
    "aes128-ctr",
)
RELAY_MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com")
"""MACs of a box's server. The third one needs a library that the guest runtime does not have."""
MACS = (*RELAY_MACS, "umac-128-etm@openssh.com")
SIGNATURES = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
"""Signature algorithms of users' keys; no SHA-1. The list that a server announces does not bind a
client: `SAFE_SIGNATURES` limits what an accepted key may verify."""
SAFE_SIGNATURES = frozenset(name.encode() for name in SIGNATURES)
