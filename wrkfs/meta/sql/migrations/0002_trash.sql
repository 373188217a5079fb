-- Version 2: trash, upkeep (garbage collection), holes of sparse files. Comments stand in schema.sql.

ALTER TABLE volume ADD COLUMN trash_seconds bigint NOT NULL DEFAULT 86400
    CHECK (trash_seconds >= 0);

ALTER TABLE inode ADD COLUMN holes bigint NOT NULL DEFAULT 0;
UPDATE inode i SET holes = i.size - coalesce(
    (SELECT sum(upper(r) - lower(r))::bigint
     FROM (SELECT unnest(range_agg(int8range(s.pos, s.pos + s.length))) AS r
           FROM slice s WHERE s.inode = i.ino) covered), 0)
WHERE i.mode >> 12 = 8 AND i.size > 0;
-- Use counts what files hold from now on, no longer their sizes.
UPDATE usage u SET bytes = u.bytes - (SELECT coalesce(sum(i.holes), 0) FROM inode i);

CREATE INDEX slice_object ON slice (slice_id) WHERE NOT is_inline;

ALTER TABLE session ADD COLUMN snapshot_at timestamptz;

ALTER TABLE slice_range ADD COLUMN ended_at timestamptz;

CREATE TABLE trash (
    parent          bigint NOT NULL,
    name            bytea NOT NULL,
    ino             bigint NOT NULL,
    bytes           bigint NOT NULL,
    deleted_at      timestamptz NOT NULL,
    PRIMARY KEY (parent, name, ino)
);
CREATE INDEX trash_age ON trash (deleted_at, ino);

CREATE TABLE upkeep (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    session_id      bigint NOT NULL,
    until           timestamptz NOT NULL
);
INSERT INTO upkeep (session_id, until) VALUES (0, '-infinity');
