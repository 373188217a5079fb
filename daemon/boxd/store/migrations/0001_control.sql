-- Settings, workspaces, boxes, API keys, volumes. schema.sql explains every column.

CREATE TABLE boxd.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE boxd.workspace (
    owner text NOT NULL,
    name text NOT NULL CHECK (name <> ''),
    created timestamptz NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE TABLE boxd.box (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),
    name text NOT NULL,
    image text NOT NULL,
    flavor text NOT NULL,
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    state text NOT NULL CHECK (
        state IN ('creating', 'running', 'suspending', 'suspended', 'resuming', 'failed')
    ),
    detail text NOT NULL,
    backend text NOT NULL,
    host_key text NOT NULL,
    created timestamptz NOT NULL,
    deadline timestamptz,
    grace interval,
    ephemeral boolean NOT NULL,
    drive boolean NOT NULL
);
CREATE UNIQUE INDEX box_name ON boxd.box (owner, coalesce(workspace, ''), name);
CREATE INDEX box_deadline ON boxd.box (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE boxd.api_key (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    scope text,
    created timestamptz NOT NULL,
    expires timestamptz,
    last_used timestamptz,
    UNIQUE (owner, name)
);

CREATE TABLE boxd.volume (
    id text PRIMARY KEY,
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),
    role text NOT NULL UNIQUE,
    schema text NOT NULL UNIQUE,
    prefix text NOT NULL UNIQUE,
    sealed bytea NOT NULL,
    created timestamptz NOT NULL
);
CREATE UNIQUE INDEX volume_workspace ON boxd.volume (owner, coalesce(workspace, ''));
