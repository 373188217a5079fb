-- Version 6: write delegations. Comments stand in schema.sql.
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
