ALTER TABLE boxd.account ADD COLUMN name text CHECK (name <> '');

-- SSH keys of accounts. An account with one key needs no row: its fingerprint is the account.
CREATE TABLE boxd.account_key (
    fingerprint text PRIMARY KEY,
    owner text NOT NULL,              -- the account: the fingerprint of its first key
    name text NOT NULL CHECK (name <> ''),
    public_key text NOT NULL,         -- one line in OpenSSH form; '': not recorded
    added timestamptz,                -- NULL: not recorded
    last_used timestamptz,            -- NULL: never used; written at most once a minute
    removed timestamptz               -- the key opens no account since then; NULL: in use
);
CREATE UNIQUE INDEX account_key_name ON boxd.account_key (owner, name) WHERE removed IS NULL;

-- Recovery codes. Only digests are stored, without salt: a code has 160 random bits.
CREATE TABLE boxd.recovery_code (
    sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
    owner text NOT NULL,
    created timestamptz NOT NULL
);
CREATE INDEX recovery_code_owner ON boxd.recovery_code (owner);
