-- The tables of a new volume; what they mean stands in schema.sql.
-- Runs in one transaction with search_path set to the volume's schema.

CREATE TABLE volume (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version  integer NOT NULL,
    bytes_limit     bigint CHECK (bytes_limit >= 0),
    inodes_limit    bigint CHECK (inodes_limit >= 0)
);

CREATE TABLE counter (
    kind            text PRIMARY KEY,
    next            bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE inode (
    ino             bigint PRIMARY KEY,
    mode            integer NOT NULL,
    nlink           integer NOT NULL,
    uid             bigint NOT NULL,
    gid             bigint NOT NULL,
    rdev            bigint NOT NULL,
    size            bigint NOT NULL,
    atime           bigint NOT NULL,
    mtime           bigint NOT NULL,
    ctime           bigint NOT NULL,
    version         bigint NOT NULL,
    parent          bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE dentry (
    parent          bigint NOT NULL,
    name            bytea NOT NULL,
    ino             bigint NOT NULL,
    cookie          bigint NOT NULL,
    PRIMARY KEY (parent, name)
);
CREATE UNIQUE INDEX dentry_cookie ON dentry (parent, cookie);

CREATE TABLE slice (
    inode           bigint NOT NULL,
    chunk           bigint NOT NULL,
    ord             bigint NOT NULL,
    pos             bigint NOT NULL,
    slice_id        bigint NOT NULL,
    size            bigint NOT NULL,
    off             bigint NOT NULL,
    length          bigint NOT NULL,
    checksums       bytea NOT NULL,
    is_inline       boolean NOT NULL,
    PRIMARY KEY (inode, chunk, ord)
);

CREATE TABLE inline (
    slice_id        bigint PRIMARY KEY,
    data            bytea NOT NULL
);
ALTER TABLE inline ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE symlink (
    ino             bigint PRIMARY KEY,
    target          bytea NOT NULL CHECK (octet_length(target) BETWEEN 1 AND 4095)
);

CREATE TABLE xattr (
    ino             bigint NOT NULL,
    name            bytea NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
    value           bytea NOT NULL CHECK (octet_length(value) <= 65536),
    PRIMARY KEY (ino, name)
);

CREATE TABLE session (
    session_id      bigint PRIMARY KEY,
    epoch           bigint NOT NULL,
    kind            text NOT NULL CHECK (octet_length(kind) <= 32),
    channel         text CHECK (octet_length(channel) <= 63),
    started_at      timestamptz NOT NULL,
    heartbeat_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    suspected_at    timestamptz,
    fenced_at       timestamptz
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE lease (
    ino             bigint NOT NULL,
    session_id      bigint NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (ino, session_id)
);

CREATE TABLE sustained (
    ino             bigint NOT NULL,
    session_id      bigint NOT NULL,
    doomed          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (ino, session_id)
);
CREATE INDEX sustained_session ON sustained (session_id, doomed);

CREATE TABLE usage (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    bytes           bigint NOT NULL,
    inodes          bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE deleted (
    slice_id        bigint PRIMARY KEY,
    size            bigint NOT NULL,
    deleted_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE slice_range (
    first           bigint PRIMARY KEY,
    count           bigint NOT NULL CHECK (count BETWEEN 1 AND 1048576),
    session_id      bigint NOT NULL
);

CREATE TABLE op_result (
    session_id      bigint NOT NULL,
    slot            integer NOT NULL,
    epoch           bigint NOT NULL,
    op_seq          bigint NOT NULL,
    ino             bigint NOT NULL,
    flag            boolean NOT NULL,
    bytes           bigint NOT NULL,
    inodes          bigint NOT NULL,
    PRIMARY KEY (session_id, slot)
) WITH (fillfactor = 30);

INSERT INTO volume (schema_version) VALUES (0);
INSERT INTO counter (kind, next) VALUES ('id', 2), ('slice', 1), ('session', 1), ('rename', 1);
INSERT INTO usage (bytes, inodes) VALUES (0, 0);
INSERT INTO inode (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version, parent)
SELECT 1, 16877, 2, 0, 0, 0, 0, t, t, t, 0, 1
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 AS t) AS now;
