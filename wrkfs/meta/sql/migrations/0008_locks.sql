-- Version 8: advisory locks of all sessions. Comments stand in schema.sql.
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
