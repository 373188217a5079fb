-- Version 7: clones and snapshots of trees, and the use of shared slices. Comments stand in schema.sql.
ALTER TABLE inode ADD COLUMN borrowed bigint NOT NULL DEFAULT 0;

ALTER TABLE slice ADD COLUMN borrowed boolean NOT NULL DEFAULT false;
DROP INDEX slice_object;
CREATE INDEX slice_object ON slice (slice_id);
CREATE INDEX slice_borrowed ON slice (slice_id) WHERE borrowed;

CREATE TABLE shared_slice (
    slice_id        bigint PRIMARY KEY,
    bytes           bigint NOT NULL
);

ALTER TABLE usage ADD COLUMN shared bigint NOT NULL DEFAULT 0;

CREATE TABLE snapshot (
    name            bytea PRIMARY KEY,
    ino             bigint NOT NULL,
    path            bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    inodes          bigint NOT NULL,
    bytes           bigint NOT NULL
);
INSERT INTO counter (kind, next) VALUES ('snapshot', 4503599627370497);
