-- Version 6: write delegations; clones and snapshots of trees; advisory locks of all sessions. Comments
-- stand in schema.sql.
ALTER TABLE session ADD COLUMN delegates boolean NOT NULL DEFAULT false;

CREATE TABLE delegation (
    ino             bigint PRIMARY KEY,
    session_id      bigint NOT NULL
);
CREATE INDEX delegation_session ON delegation (session_id);

CREATE TABLE reservation (
    session_id      bigint PRIMARY KEY,
    bytes           bigint NOT NULL,
    inodes          bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO op_result (session_id, slot, epoch, op_seq, ino, flag, bytes, inodes)
SELECT s.session_id, 0, s.epoch, 0, 0, false, 0, 0 FROM session s WHERE s.fenced_at IS NULL;

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

ALTER TABLE session ADD COLUMN alive_since timestamptz;

CREATE UNLOGGED TABLE lock_file (
    ino             bigint PRIMARY KEY,
    delegate        bigint NOT NULL,
    last_session    bigint NOT NULL,
    shared_at       timestamptz
) WITH (fillfactor = 50);
CREATE INDEX lock_file_delegate ON lock_file (delegate) WHERE delegate <> 0;

CREATE UNLOGGED TABLE file_lock (
    ino             bigint NOT NULL,
    space           integer NOT NULL,
    session_id      bigint NOT NULL,
    owner           bigint NOT NULL,
    mode            integer NOT NULL,
    first           bigint NOT NULL,
    last            bigint NOT NULL,
    pid             integer NOT NULL,
    PRIMARY KEY (ino, space, session_id, owner, first)
);
CREATE INDEX file_lock_session ON file_lock (session_id);

CREATE UNLOGGED TABLE lock_waiter (
    session_id      bigint NOT NULL,
    ticket          bigint NOT NULL,
    ino             bigint NOT NULL,
    space           integer NOT NULL,
    owner           bigint NOT NULL,
    mode            integer NOT NULL,
    first           bigint NOT NULL,
    last            bigint NOT NULL,
    is_process      boolean NOT NULL,
    since           timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL,
    PRIMARY KEY (session_id, ticket)
);
CREATE INDEX lock_waiter_file ON lock_waiter (ino);
