CREATE TABLE boxd.proxy_session (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    owner text NOT NULL,
    scope text,
    key_id text NOT NULL REFERENCES boxd.api_key (id) ON DELETE CASCADE,
    box_id text NOT NULL REFERENCES boxd.box (id) ON DELETE CASCADE,
    port integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    host text,
    sha256 bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
    created timestamptz NOT NULL,
    expires timestamptz NOT NULL
);
CREATE INDEX proxy_session_owner ON boxd.proxy_session (owner);
CREATE INDEX proxy_session_key ON boxd.proxy_session (key_id);
CREATE INDEX proxy_session_box ON boxd.proxy_session (box_id);
