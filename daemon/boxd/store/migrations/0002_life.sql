ALTER TABLE boxd.box ADD COLUMN step smallint NOT NULL DEFAULT 0;
ALTER TABLE boxd.box ADD COLUMN since timestamptz;
UPDATE boxd.box SET since = now();
ALTER TABLE boxd.box ALTER COLUMN since SET NOT NULL;
ALTER TABLE boxd.box ADD COLUMN idle_since timestamptz;
ALTER TABLE boxd.box ADD COLUMN memory boolean NOT NULL DEFAULT false;
ALTER TABLE boxd.box ADD COLUMN durable boolean NOT NULL DEFAULT false;
ALTER TABLE boxd.box ADD COLUMN auto_suspend boolean NOT NULL DEFAULT true;
ALTER TABLE boxd.box ADD COLUMN pinned_until timestamptz;
ALTER TABLE boxd.box ADD COLUMN pin_why text NOT NULL DEFAULT '';
ALTER TABLE boxd.box ADD COLUMN confidential boolean NOT NULL DEFAULT false;
ALTER TABLE boxd.box ADD COLUMN egress text NOT NULL DEFAULT 'all';
ALTER TABLE boxd.box ADD COLUMN disk_mb integer NOT NULL DEFAULT 0 CHECK (disk_mb >= 0);
ALTER TABLE boxd.box ADD COLUMN pids integer NOT NULL DEFAULT 512 CHECK (pids > 0);
ALTER TABLE boxd.box ADD COLUMN clamped boolean NOT NULL DEFAULT false;

CREATE TABLE boxd.snapshot (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    workspace text CHECK (workspace <> ''),
    box_name text NOT NULL,
    name text NOT NULL,
    box_id text NOT NULL,
    created timestamptz NOT NULL,
    ready boolean NOT NULL,
    memory boolean NOT NULL,
    image text NOT NULL,
    flavor text NOT NULL,
    cpus double precision NOT NULL CHECK (cpus > 0),
    mem_mb integer NOT NULL CHECK (mem_mb > 0),
    disk_mb integer NOT NULL CHECK (disk_mb >= 0),
    pids integer NOT NULL CHECK (pids > 0),
    egress text NOT NULL,
    drive boolean NOT NULL,
    backend text NOT NULL
);
CREATE UNIQUE INDEX snapshot_name
    ON boxd.snapshot (owner, coalesce(workspace, ''), box_name, name);

CREATE TABLE boxd.profile (
    owner text NOT NULL,
    name text NOT NULL CHECK (name <> ''),
    image text NOT NULL,
    flavor text,
    ttl interval,
    grace interval,
    egress text,
    PRIMARY KEY (owner, name)
);
