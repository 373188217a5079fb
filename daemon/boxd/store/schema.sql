-- Control-plane schema: the commented reference. Migrations make it; a test compares the two.
-- All tables stand in schema `boxd`, which PUBLIC cannot use: roles of volumes share the server.
-- Times are wall time, UTC. Text of users is checked by boxd.names before it comes here.

CREATE SCHEMA boxd;
REVOKE ALL ON SCHEMA boxd FROM PUBLIC;

-- Which migrations have run. Forward only: a version is never changed after a release.
CREATE TABLE boxd.migration (
    version integer PRIMARY KEY,      -- number of the file, 1, 2, ...
    name text NOT NULL,               -- the file's name, for people
    applied timestamptz NOT NULL DEFAULT now()
);

-- Settings of this installation that are neither flags nor secrets.
CREATE TABLE boxd.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

-- Named workspaces. The default workspace of an owner has no row and always exists.
CREATE TABLE boxd.workspace (
    owner text NOT NULL,              -- fingerprint of an SSH key, 'SHA256:...'
    name text NOT NULL CHECK (name <> ''),
    created timestamptz NOT NULL,
    profile text,                     -- of boxes whose spec names no image; NULL: none
    PRIMARY KEY (owner, name)
);

-- Live boxes. Removal of a box is the deletion of its row: what has no row is destroyed at the
-- next start. boxd.boxes.lifecycle alone writes it, and writes it before it acts.
CREATE TABLE boxd.box (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    name text NOT NULL,
    image text NOT NULL,
    flavor text NOT NULL,             -- '' when caps were given without a named flavor
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    state text NOT NULL CHECK (
        state IN ('creating', 'running', 'suspending', 'suspended', 'resuming', 'failed')
    ),                                -- changes only by compare-and-set along model.box.TRANSITIONS
    detail text NOT NULL,             -- one line for people: how it came into this state; may be ''
    backend text NOT NULL,            -- name of the backend that holds it
    host_key text NOT NULL,           -- OpenSSH public key its agent must show in the tunnel
    created timestamptz NOT NULL,
    deadline timestamptz,             -- NULL: none; else removed then, whatever holds it
    grace interval,                   -- NULL: the daemon's default
    ephemeral boolean NOT NULL,       -- removed when its last channel closes
    drive boolean NOT NULL,           -- /wrk belongs in it: attached at each start
    step smallint NOT NULL DEFAULT 0, -- of its present change, written before it is done; 0: none
    since timestamptz NOT NULL,       -- when it came into its state
    idle_since timestamptz,           -- last detach, or end of the last shell; NULL: none yet
    memory boolean NOT NULL DEFAULT false,       -- it sleeps with its memory on the host's disk
    durable boolean NOT NULL DEFAULT false,      -- only its deadline removes it by itself
    auto_suspend boolean NOT NULL DEFAULT true,  -- false: not suspended for being idle
    pinned_until timestamptz,         -- held awake until then; NULL: no pin
    pin_why text NOT NULL DEFAULT '', -- what the pin is for, as its maker wrote it
    confidential boolean NOT NULL DEFAULT false, -- first reached by the relay; never suspended
    egress text NOT NULL DEFAULT 'all',          -- 'all', 'none', or names and networks
    disk_mb integer NOT NULL DEFAULT 0 CHECK (disk_mb >= 0), -- cap of its layer; 0: none
    pids integer NOT NULL DEFAULT 512 CHECK (pids > 0),      -- cap of processes and threads
    clamped boolean NOT NULL DEFAULT false,      -- its deadline is shorter than was asked for
    relay_key text NOT NULL DEFAULT '',          -- OpenSSH public key its own SSH server takes
    profile text                                 -- made from; '': from none; NULL: not known
);
-- A name is unique in a workspace. '' stands for the default workspace, no workspace is called so.
CREATE UNIQUE INDEX box_name ON boxd.box (owner, coalesce(workspace, ''), name);
CREATE INDEX box_deadline ON boxd.box (deadline) WHERE deadline IS NOT NULL;

-- Snapshots of boxes: disk, and memory if the box ran or slept with it. They outlive their box and
-- are addressed by its name. A row without `ready` was not finished: removed at the next start.
CREATE TABLE boxd.snapshot (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    box_name text NOT NULL,
    name text NOT NULL,
    box_id text NOT NULL,             -- the box it was taken of; it may be gone
    created timestamptz NOT NULL,
    ready boolean NOT NULL,
    memory boolean NOT NULL,          -- processes go on from it; else a box starts from its disk
    image text NOT NULL,              -- from here on: what a box made of it gets
    flavor text NOT NULL,
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    disk_mb integer NOT NULL CHECK (disk_mb >= 0),
    pids integer NOT NULL CHECK (pids > 0),
    egress text NOT NULL,
    drive boolean NOT NULL,
    backend text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0 CHECK (size_bytes >= 0), -- on the host's disk; 0: not known
    profile text                      -- of the box it was taken of, as in boxd.box
);
CREATE UNIQUE INDEX snapshot_name
    ON boxd.snapshot (owner, coalesce(workspace, ''), box_name, name);

-- Box profiles: an image with defaults under a name of the owner's. NULL: the profile does not say.
CREATE TABLE boxd.profile (
    owner text NOT NULL,
    name text NOT NULL CHECK (name <> ''),
    image text NOT NULL,
    flavor text,
    ttl interval,                     -- deadline, counted from creation
    grace interval,                   -- lifetime after the last detach
    egress text,
    snapshot text CHECK (snapshot ~ '^[0-9a-f]{32}$'), -- boxes start from its disk; it may be gone
    built_from text,                  -- how its owner addresses it
    PRIMARY KEY (owner, name)
);

-- API keys. The key itself is never stored: 160 random bits need no salt.
CREATE TABLE boxd.api_key (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    scope text,                       -- NULL: the whole account; else the one workspace
    created timestamptz NOT NULL,
    expires timestamptz,              -- NULL: never
    last_used timestamptz,            -- NULL: never used; written at most once a minute
    UNIQUE (owner, name)
);

-- Volumes: one drive in use per (owner, workspace). Role, schema and prefix are random and meaningless.
CREATE TABLE boxd.volume (
    id text PRIMARY KEY,
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    role text NOT NULL UNIQUE,
    schema text NOT NULL UNIQUE,
    prefix text NOT NULL UNIQUE,      -- of its objects; no trailing slash
    sealed bytea NOT NULL,            -- credentials, encrypted with the state directory's key file
    created timestamptz NOT NULL,
    trashed_until timestamptz         -- in the trash, and destroyed then; NULL: in use
);
CREATE UNIQUE INDEX volume_workspace ON boxd.volume (owner, coalesce(workspace, ''))
    WHERE trashed_until IS NULL;

-- Links to one box for people without its owner's key. The token is never stored: 128 random bits
-- need no salt. They go with their box.
CREATE TABLE boxd.share (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,              -- of the box
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz,              -- NULL: with the box
    last_used timestamptz             -- NULL: never used; written at most once a minute
);
CREATE INDEX share_box ON boxd.share (box_id);

-- What the operator decided on single owners. Who has no row has the default of everything.
CREATE TABLE boxd.account (
    owner text PRIMARY KEY,
    tier text CHECK (tier <> ''),     -- name in tiers.toml; NULL: the default one
    blocked timestamptz,              -- since when nobody gets in; NULL: not blocked
    last_seen timestamptz             -- NULL: not known
);

-- What administrators did. A row is written before the act, and told its end afterwards.
CREATE TABLE boxd.audit (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    at timestamptz NOT NULL,
    admin text NOT NULL,              -- fingerprint of the key
    line text NOT NULL,               -- the command line, escaped and cut
    status integer,                   -- its exit status; NULL: it did not come to an end
    owners text[] NOT NULL DEFAULT '{}' -- whom it was about
);
CREATE INDEX audit_at ON boxd.audit (at);

-- What owners entrust to their sessions as environment. Values never stand here in clear.
CREATE TABLE boxd.secret (
    owner text NOT NULL,
    tier text NOT NULL CHECK (tier IN ('account', 'workspace')), -- account: in all workspaces
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace, or tier 'account'
    name text NOT NULL,               -- of the environment variable
    sealed bytea NOT NULL,            -- the value, encrypted with the state directory's key file
    updated timestamptz NOT NULL,
    CHECK (tier = 'workspace' OR workspace IS NULL)
);
CREATE UNIQUE INDEX secret_name ON boxd.secret (owner, tier, coalesce(workspace, ''), name);

-- The agent that an owner has tasks done by.
CREATE TABLE boxd.agent (
    owner text PRIMARY KEY,
    command text NOT NULL,
    env text NOT NULL,                -- name of the variable in which it gets its token
    format text NOT NULL CHECK (format IN ('text', 'jsonl')), -- of its stdout
    sealed bytea NOT NULL,            -- the token, encrypted like a secret
    updated timestamptz NOT NULL
);

-- Questions of programs to their owner. The first answer counts.
CREATE TABLE boxd.ask (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),   -- NULL: the default workspace
    box_id text,                      -- where it was asked, and may be gone; NULL: in no box
    question text NOT NULL,
    options text[] NOT NULL,          -- answers to choose from; empty: any
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL,     -- no answer is taken from then on
    answer text,                      -- NULL: none yet
    answered timestamptz,
    asker text,                       -- id of the API key or of the box that asked; NULL: by SSH
    CHECK ((answer IS NULL) = (answered IS NULL))
);
CREATE INDEX ask_owner ON boxd.ask (owner);

-- Browsers that look at one port of one box. The cookie is never stored: 256 random bits need no
-- salt. They go with their box, and with the key that made them.
CREATE TABLE boxd.proxy_session (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,              -- of box and key
    scope text,                       -- of the key
    key_id text NOT NULL REFERENCES boxd.api_key (id) ON DELETE CASCADE,
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    port integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    host text,                        -- the preview host; NULL: the path of the API
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL      -- at most the key's
);
CREATE INDEX proxy_session_owner ON boxd.proxy_session (owner);
CREATE INDEX proxy_session_key ON boxd.proxy_session (key_id);
CREATE INDEX proxy_session_box ON boxd.proxy_session (box_id);

-- Documents that programs render for people.
CREATE TABLE boxd.canvas (
    owner text NOT NULL,
    scope text CHECK (scope <> ''),   -- the workspace of a confined credential; NULL: the account
    id text NOT NULL CHECK (id ~ '^[a-z0-9-]{1,64}$'),
    title text NOT NULL,
    mime text NOT NULL,
    size integer NOT NULL CHECK (size >= 0),          -- bytes of the content
    revision integer NOT NULL CHECK (revision > 0),
    updated timestamptz NOT NULL,
    expires timestamptz,              -- it is gone from then on; NULL: never
    content text NOT NULL
);
CREATE UNIQUE INDEX canvas_id ON boxd.canvas (owner, coalesce(scope, ''), id);
CREATE INDEX canvas_expires ON boxd.canvas (expires);
