-- The commented reference of the control database. The migrations create it; a test compares both.
-- All tables are in the schema `boxd`. PUBLIC cannot use it, because roles of volumes use the same
-- server. Times are wall-clock times in UTC. boxd.names checks text of users before it is stored.

CREATE SCHEMA boxd;
REVOKE ALL ON SCHEMA boxd FROM PUBLIC;

-- The applied migrations. Migrations go forward only, and no version changes after its release.
CREATE TABLE boxd.migration (
    version integer PRIMARY KEY,      -- number of the migration file: 1, 2, ...
    name text NOT NULL,               -- name of the migration file, for people
    applied timestamptz NOT NULL DEFAULT now()
);

-- Persistent settings of the installation that are neither flags nor secrets.
CREATE TABLE boxd.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

-- Named workspaces. The default workspace of an owner has no row and always exists.
CREATE TABLE boxd.workspace (
    owner text NOT NULL,              -- fingerprint of an SSH key, 'SHA256:...'
    name text NOT NULL CHECK (name <> ''),
    created timestamptz NOT NULL,
    profile text,                     -- for boxes whose spec names no image; NULL: none
    PRIMARY KEY (owner, name)
);

-- Live boxes. Only boxd.boxes.lifecycle writes this table, and it writes before it acts. Deleting
-- the row removes the box: the next start destroys everything that has no row.
CREATE TABLE boxd.box (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    name text NOT NULL,
    image text NOT NULL,
    flavor text NOT NULL,             -- '' if the limits were given without a named flavor
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    state text NOT NULL CHECK (
        state IN ('creating', 'running', 'suspending', 'suspended', 'resuming', 'failed')
    ),                                -- changes only by compare-and-set, as in model.box.TRANSITIONS
    detail text NOT NULL,             -- one line for people: the reason for this state; may be ''
    backend text NOT NULL,            -- name of the backend that runs the box
    host_key text NOT NULL,           -- OpenSSH public key that its agent must present
    created timestamptz NOT NULL,
    deadline timestamptz,             -- the box is removed then, even if it is in use; NULL: none
    grace interval,                   -- NULL: the default of the daemon
    ephemeral boolean NOT NULL,       -- removed when its last channel closes
    drive boolean NOT NULL,           -- whether /wrk is mounted at each start
    step smallint NOT NULL DEFAULT 0, -- current step of a change, written before it runs; 0: none
    since timestamptz NOT NULL,       -- when the box entered its state
    idle_since timestamptz,           -- last detach, or end of the last shell; NULL: none yet
    memory boolean NOT NULL DEFAULT false,       -- suspended with its memory on the host's disk
    durable boolean NOT NULL DEFAULT false,      -- only its deadline removes it automatically
    auto_suspend boolean NOT NULL DEFAULT true,  -- false: not suspended when idle
    pinned_until timestamptz,         -- kept awake until then; NULL: no pin
    pin_why text NOT NULL DEFAULT '', -- reason for the pin, in its creator's words
    confidential boolean NOT NULL DEFAULT false, -- first reached through the relay; never suspended
    egress text NOT NULL DEFAULT 'all',          -- 'all', 'none', or host names and networks
    disk_mb integer NOT NULL DEFAULT 0 CHECK (disk_mb >= 0), -- limit of its layer; 0: none
    pids integer NOT NULL DEFAULT 512 CHECK (pids > 0),      -- limit of processes and threads
    clamped boolean NOT NULL DEFAULT false,      -- its deadline is earlier than requested
    relay_key text NOT NULL DEFAULT '',          -- OpenSSH public key for its own SSH server
    profile text,                                -- profile of its creation; '': none; NULL: unknown
    runtime text NOT NULL DEFAULT '',            -- its OCI runtime; '': the backend's default
    containers boolean NOT NULL DEFAULT false    -- may run containers; never suspended
);
-- Names are unique in a workspace. '' means the default workspace; no workspace has this name.
CREATE UNIQUE INDEX box_name ON boxd.box (owner, coalesce(workspace, ''), name);
CREATE INDEX box_deadline ON boxd.box (deadline) WHERE deadline IS NOT NULL;

-- Snapshots of boxes: the disk, and the memory of a box that ran or was suspended with memory. A
-- snapshot outlives its box; its address is the name of the box. The next start removes rows that
-- are not `ready`, because these snapshots were not completed.
CREATE TABLE boxd.snapshot (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    box_name text NOT NULL,
    name text NOT NULL,
    box_id text NOT NULL,             -- the box of the snapshot, which may be removed
    created timestamptz NOT NULL,
    ready boolean NOT NULL,
    memory boolean NOT NULL,          -- processes continue from it; false: disk only
    image text NOT NULL,              -- from here on: settings of boxes created from it
    flavor text NOT NULL,
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    disk_mb integer NOT NULL CHECK (disk_mb >= 0),
    pids integer NOT NULL CHECK (pids > 0),
    egress text NOT NULL,
    drive boolean NOT NULL,
    backend text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0 CHECK (size_bytes >= 0), -- on the host's disk; 0: unknown
    profile text,                     -- profile of the box, as in boxd.box
    runtime text NOT NULL DEFAULT '',
    containers boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX snapshot_name
    ON boxd.snapshot (owner, coalesce(workspace, ''), box_name, name);

-- Box profiles: an image with defaults, under a name that the owner chose. NULL: no default.
CREATE TABLE boxd.profile (
    owner text NOT NULL,
    name text NOT NULL CHECK (name <> ''),
    image text NOT NULL,
    flavor text,
    ttl interval,                     -- deadline, counted from the creation of a box
    grace interval,                   -- lifetime after the last detach
    egress text,
    snapshot text CHECK (snapshot ~ '^[0-9a-f]{32}$'), -- new boxes start from its disk
    built_from text,                  -- address of that snapshot, as its owner wrote it
    durable boolean NOT NULL DEFAULT false, -- new boxes are durable
    PRIMARY KEY (owner, name)
);

-- API keys. Only digests are stored, without salt: a key has 160 random bits.
CREATE TABLE boxd.api_key (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    scope text,                       -- one workspace; NULL: the whole account
    created timestamptz NOT NULL,
    expires timestamptz,              -- NULL: never
    last_used timestamptz,            -- NULL: never used; written at most once a minute
    UNIQUE (owner, name)
);

-- Volumes: one drive in use per (owner, workspace). Role, schema and prefix are random names.
CREATE TABLE boxd.volume (
    id text PRIMARY KEY,
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    role text NOT NULL UNIQUE,
    schema text NOT NULL UNIQUE,
    prefix text NOT NULL UNIQUE,      -- prefix of its objects, without a trailing slash
    sealed bytea NOT NULL,            -- credentials, encrypted with the state directory's key file
    created timestamptz NOT NULL,
    trashed_until timestamptz         -- in the trash; destroyed then; NULL: in use
);
CREATE UNIQUE INDEX volume_workspace ON boxd.volume (owner, coalesce(workspace, ''))
    WHERE trashed_until IS NULL;

-- Links to one box for people without its owner's key. Only digests of tokens are stored, without
-- salt: a token has 128 random bits. The database deletes the shares of a box with the box.
CREATE TABLE boxd.share (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,              -- owner of the box
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz,              -- NULL: lasts as long as the box
    last_used timestamptz             -- NULL: never used; written at most once a minute
);
CREATE INDEX share_box ON boxd.share (box_id);

-- Settings of single owners. An owner without a row has all defaults.
CREATE TABLE boxd.account (
    owner text PRIMARY KEY,
    tier text CHECK (tier <> ''),     -- name in tiers.toml; NULL: the default tier
    blocked timestamptz,              -- the owner has no access since then; NULL: not blocked
    last_seen timestamptz,            -- NULL: unknown
    name text CHECK (name <> '')      -- the name that its owner chose; NULL: none
);

-- SSH keys of accounts. An account with one key needs no row: its fingerprint is the account. The
-- row of a removed key stays, so that the key never opens the account again.
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

-- Commands of administrators. A row is added before the command runs and completed afterwards.
CREATE TABLE boxd.audit (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    at timestamptz NOT NULL,
    admin text NOT NULL,              -- fingerprint of the administrator's key
    line text NOT NULL,               -- the command line, escaped and truncated
    status integer,                   -- exit status; NULL: the command did not finish
    owners text[] NOT NULL DEFAULT '{}' -- the affected owners
);
CREATE INDEX audit_at ON boxd.audit (at);

-- Environment variables that owners set for processes in their boxes. The values are encrypted.
CREATE TABLE boxd.secret (
    owner text NOT NULL,
    tier text NOT NULL CHECK (tier IN ('account', 'workspace')), -- account: for all workspaces
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace, or tier 'account'
    name text NOT NULL,               -- name of the environment variable
    sealed bytea NOT NULL,            -- the value, encrypted with the state directory's key file
    updated timestamptz NOT NULL,
    CHECK (tier = 'workspace' OR workspace IS NULL)
);
CREATE UNIQUE INDEX secret_name ON boxd.secret (owner, tier, coalesce(workspace, ''), name);

-- The program that runs an owner's delegated tasks.
CREATE TABLE boxd.agent (
    owner text PRIMARY KEY,
    command text NOT NULL,
    env text NOT NULL,                -- name of the environment variable with its token
    format text NOT NULL CHECK (format IN ('text', 'jsonl')), -- format of its stdout
    sealed bytea NOT NULL,            -- the token, encrypted as a secret is
    updated timestamptz NOT NULL
);

-- Questions of programs to their owner. Only the first answer counts.
CREATE TABLE boxd.ask (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    box_id text,                      -- the box of the question, which may be removed; NULL: none
    question text NOT NULL,
    options text[] NOT NULL,          -- answers to choose from; empty: any text
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,     -- no answer is accepted from then on
    answer text,                      -- NULL: no answer yet
    answered timestamptz,
    asker text,                       -- id of the API key or the box that asked; NULL: over SSH
    CHECK ((answer IS NULL) = (answered IS NULL))
);
CREATE INDEX ask_owner ON boxd.ask (owner);

-- Browser sessions for one port of one box. Only digests of cookies are stored, without salt: a
-- cookie has 256 random bits. The database deletes a session with its box and with its key.
CREATE TABLE boxd.proxy_session (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,              -- owner of the box and the key
    scope text,                       -- scope of the key
    key_id text NOT NULL REFERENCES boxd.api_key (id) ON DELETE CASCADE,
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    port integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    host text,                        -- preview host; NULL: the path of the API
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL      -- not later than the key expires
);
CREATE INDEX proxy_session_owner ON boxd.proxy_session (owner);
CREATE INDEX proxy_session_key ON boxd.proxy_session (key_id);
CREATE INDEX proxy_session_box ON boxd.proxy_session (box_id);

-- Documents that programs show to people.
CREATE TABLE boxd.canvas (
    owner text NOT NULL,
    scope text CHECK (scope <> ''),   -- workspace of a confined credential; NULL: the account
    id text NOT NULL CHECK (id ~ '^[a-z0-9-]{1,64}$'),
    title text NOT NULL,
    mime text NOT NULL,
    size integer NOT NULL CHECK (size >= 0),          -- bytes of the content
    revision integer NOT NULL CHECK (revision > 0),
    updated timestamptz NOT NULL,
    expires timestamptz,              -- the canvas has expired from then on; NULL: never
    content text NOT NULL
);
CREATE UNIQUE INDEX canvas_id ON boxd.canvas (owner, coalesce(scope, ''), id);
CREATE INDEX canvas_expires ON boxd.canvas (expires);

-- Requests with an idempotency key, for a day.
CREATE TABLE boxd.idempotent_request (
    owner text NOT NULL,
    key_sha256 bytea NOT NULL CHECK (length(key_sha256) = 32),
    request_sha256 bytea NOT NULL CHECK (length(request_sha256) = 32),
    attempt text NOT NULL,            -- the call that started the request
    started timestamptz NOT NULL,
    status integer,                   -- HTTP status; NULL: not ended, or the end is not known
    sealed bytea,                     -- the response, encrypted with the key of the state directory
    PRIMARY KEY (owner, key_sha256)
);
