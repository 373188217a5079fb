-- Version 3: leases. Comments stand in schema.sql.

UPDATE inode i SET parent = d.parent FROM dentry d
WHERE d.ino = i.ino AND i.mode >> 12 <> 4 AND i.nlink = 1;

ALTER TABLE lease RENAME COLUMN expires_at TO taken_at;

CREATE UNLOGGED TABLE recall (
    ino             bigint NOT NULL,
    session_id      bigint NOT NULL,
    until           timestamptz NOT NULL,
    PRIMARY KEY (ino, session_id)
);

ALTER TABLE session ADD COLUMN tenure bigint NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN run timestamptz;
ALTER TABLE session ADD COLUMN process text CHECK (octet_length(process) <= 120);
