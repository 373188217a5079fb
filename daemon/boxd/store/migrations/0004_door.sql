ALTER TABLE boxd.box ADD COLUMN relay_key text NOT NULL DEFAULT '';
ALTER TABLE boxd.workspace ADD COLUMN profile text;
ALTER TABLE boxd.profile ADD COLUMN snapshot text CHECK (snapshot ~ '^[0-9a-f]{32}$');
ALTER TABLE boxd.profile ADD COLUMN built_from text;

CREATE TABLE boxd.share (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz,
    last_used timestamptz
);
CREATE INDEX share_box ON boxd.share (box_id);

CREATE TABLE boxd.account (
    owner text PRIMARY KEY,
    tier text CHECK (tier <> ''),
    blocked timestamptz,
    last_seen timestamptz
);

CREATE TABLE boxd.audit (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    at timestamptz NOT NULL,
    admin text NOT NULL,
    line text NOT NULL,
    status integer,
    owners text[] NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_at ON boxd.audit (at);

CREATE TABLE boxd.secret (
    owner text NOT NULL,
    tier text NOT NULL CHECK (tier IN ('account', 'workspace')),
    workspace text CHECK (workspace <> ''),
    name text NOT NULL,
    sealed bytea NOT NULL,
    updated timestamptz NOT NULL,
    CHECK (tier = 'workspace' OR workspace IS NULL)
);
CREATE UNIQUE INDEX secret_name ON boxd.secret (owner, tier, coalesce(workspace, ''), name);

CREATE TABLE boxd.agent (
    owner text PRIMARY KEY,
    command text NOT NULL,
    env text NOT NULL,
    format text NOT NULL CHECK (format IN ('text', 'jsonl')),
    sealed bytea NOT NULL,
    updated timestamptz NOT NULL
);

CREATE TABLE boxd.ask (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),
    box_id text,
    question text NOT NULL,
    options text[] NOT NULL,
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    answer text,
    answered timestamptz,
    CHECK ((answer IS NULL) = (answered IS NULL))
);
CREATE INDEX ask_owner ON boxd.ask (owner);
