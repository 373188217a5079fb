CREATE TABLE boxd.canvas (
    owner text NOT NULL,
    scope text CHECK (scope <> ''),
    id text NOT NULL CHECK (id ~ '^[a-z0-9-]{1,64}$'),
    title text NOT NULL,
    mime text NOT NULL,
    size integer NOT NULL CHECK (size >= 0),
    revision integer NOT NULL CHECK (revision > 0),
    updated timestamptz NOT NULL,
    expires timestamptz,
    content text NOT NULL
);
CREATE UNIQUE INDEX canvas_id ON boxd.canvas (owner, coalesce(scope, ''), id);
CREATE INDEX canvas_expires ON boxd.canvas (expires);
