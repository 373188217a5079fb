-- Version 5: names removed from files that have others, and the times of directories before a
-- removal. Comments stand in schema.sql.
ALTER TABLE trash ADD COLUMN dir_mtime bigint;

CREATE TABLE removed_link (
    ino             bigint NOT NULL,
    parent          bigint NOT NULL,
    name            bytea NOT NULL,
    deleted_at      timestamptz NOT NULL,
    dir_mtime       bigint,
    PRIMARY KEY (ino, parent, name)
);
CREATE INDEX removed_link_age ON removed_link (deleted_at, ino);
