-- The metadata of one volume: canonical reference of every table, column and invariant.
--
-- One volume is one schema of the metadata database. The tables belong to the daemon's role. The
-- volume's own role has exactly the rights that `migrate.py` grants, and uses the functions of schema
-- `wrkfs`. `migrations/` creates a new volume; a test compares the result with this file, so both
-- change together.
--
-- Units: sizes and offsets are bytes, times are nanoseconds since the epoch (bigint) where a
-- program sees them through stat(2), timestamptz where only the drive itself uses them.
-- Numbers: an inode number, a cookie or a slice id is never used twice. They come from durable ranges
-- (`counter`), because a sequence may step back when PostgreSQL crashes after an asynchronous commit,
-- and a client may then still have the number of a removed file.
-- Hostile rows: the volume's role can write any row. The functions then return an error, every loop
-- is bounded, and the client checks the rows that it reads (`rows.py`). The tables that each operation
-- writes have no CHECK, because PostgreSQL parses and plans constraints again in every statement;
-- measured, they were 120 us of a create's 250.
--
-- INVARIANTS (fsck has one check for each)
--  I1  Every dentry's `ino` has an inode; every dentry's `parent` is a directory.
--  I2  A directory has nlink = 2 + number of its subdirectories and exactly one dentry, except the
--      root (no dentry, parent = itself) and detached ones: nlink = 0 and no dentry, but a
--      sustained row with `doomed`, or a row of `trash`, or both.
--  I3  Any other inode has nlink = number of its dentries; with nlink = 0 it has a sustained row, or
--      a row of `trash`, or both.
--  I4  inode.parent of a directory with nlink > 0 is the `parent` of its dentry; following it ends at
--      the root.
--  I5  Every ref (row of `slice`) belongs to a regular file and ends at or before the file's size.
--  I6  A ref lies within one chunk and within its slice: off + length <= size.
--  I7  A slice with `is_inline` has a row in `inline` of exactly `size` bytes; every row of `inline`
--      is referenced; inline slices have no objects.
--  I8  A slice in `deleted` is referenced by no ref (refs of inodes in the trash count as refs).
--  I9  A symbolic link has a row in `symlink` of exactly inode.size bytes; nothing else has one.
--  I10 Inodes with nlink > 0 or a sustained row count, except the root; inodes that only the trash
--      keeps do not. Usage in bytes (sum over counted regular files of size - holes - borrowed, and
--      sum over `shared_slice`) = usage.shared + sum of bytes over `usage` and `op_result`; usage in
--      inodes = sum of inodes over both.
--  I11 Each live session has its slots in `op_result`; a fenced one has none.
--  I12 Every value is in the range that the comment of its column states.
--  I13 Every row of xattr, sustained, trash and removed_link names an inode that exists; every row
--      of op_result and sustained a session. A directory has no row of removed_link.
--  I14 An inode in `trash` has nlink = 0 and one row there, and its inode.parent is the `parent` of
--      that row. No other inode with nlink = 0 has inode.parent <> 0.
--  I15 trash.bytes of a regular file without sustained row is size - holes - borrowed; of
--      others it is 0.
--  I16 Every slice id in use (ref, `inline`, `deleted`) is below the counter's `next`; no slice id
--      lies in two ranges of `slice_range`.
--  I17 The rows of `snapshot` are the entries of directory 2^52, which is the entry `.snapshots` of
--      the root. No other entry names an inode below 2^52 in a directory from 2^52 on, or the reverse.
--  I18 inode.borrowed is the number of bytes that only borrowed refs cover. `shared_slice` has the
--      slices whose refs are all borrowed, with their sizes; usage.shared is their sum.
--  I19 Every row of `delegation` names a directory with nlink > 0, and a session that is not fenced.
--  I20 Every row of `reservation` has bytes >= 0 and inodes >= 0, and a session that is not fenced.
--
-- SESSIONS, EXPIRY AND FENCING
--  A mount (or HTTP server) registers a session and sends a heartbeat every 2 s, which sets
--  `expires_at` 6 s (`wrkfs.lease_time`) ahead by the database's clock.
--  * Expired means only that other sessions do not wait for the session: its leases are void (the
--    holder stops using its cache 5 s after its last heartbeat). Its files stay sustained, its
--    changes are accepted, and the next heartbeat extends it. Only a session that needs one of its
--    advisory locks fences it then. So an outage of the database costs a
--    session nothing: during the outage no session can fence another one.
--  * Fenced is final. `fence` does it on request; before expiry it needs force, and a caller that
--    knows that the process is dead. `reap` does it in two steps: after 90 s without a heartbeat a
--    session becomes suspected, and after 6 more seconds it is fenced. A heartbeat clears the
--    suspicion. So after an outage of any length, or a step of the clock, every session has 6 s for
--    a heartbeat before `reap` can fence it. A mount that loses its connection for less than 90 s
--    loses nothing (a call fails after 60 s).
--  * Fencing deletes the session's slots (`op_result`) and waits for running calls. A mutating
--    function that finds no slot of its (session, epoch) changes nothing. So after the return of
--    `fence`, no change of the fenced session appears.
--  * The mount of a fenced session registers a new one with a higher epoch. Bytes that were written
--    under the old epoch and not committed are discarded, because other sessions may have changed
--    the files since. Every handle that was open then reports the loss (EIO). `reap` reclaims the
--    files that the old session sustained.
--
-- LOCKS
--  A mutating function locks, in this order: its own slot row, the row `rename` of `counter` (only
--  when a directory moves to another directory), inode rows FOR NO KEY UPDATE in the order of ino,
--  the row of `usage` (only when shared slices change). Clones first lock all slots (`pause_changes`).
--  After locking, it checks again what it read before. If that has changed, the function changes
--  nothing and returns EAGAIN, and the client calls again.

-- Settings of the volume. One row; the volume's role may only read it.
CREATE TABLE volume (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version  integer NOT NULL,   -- number of the last migration applied
    bytes_limit     bigint CHECK (bytes_limit >= 0),    -- NULL: no quota
    inodes_limit    bigint CHECK (inodes_limit >= 0),   -- NULL: no quota
    trash_seconds   bigint NOT NULL DEFAULT 86400   -- so long removed files can be restored;
                    CHECK (trash_seconds >= 0)      -- 0: they are freed at once
);

-- Numbers handed out in ranges by durable commits, and the lock of directory moves.
CREATE TABLE counter (
    kind            text PRIMARY KEY,   -- 'id': inodes and cookies; 'slice': slices; 'session';
                                        -- 'snapshot': inodes of snapshots, from 2^52 on;
                                        -- 'rename': its row lock only
    next            bigint NOT NULL     -- first number not yet given
) WITH (fillfactor = 50);

-- Inodes. Column order equals type wrkfs.reply after errno and flag.
CREATE TABLE inode (
    ino             bigint PRIMARY KEY, -- 1 is the root
    mode            integer NOT NULL,   -- type (file, directory, symlink, fifo, socket,
                                        -- device node) and permission bits as in stat(2)
    nlink           integer NOT NULL,   -- >= 0; 0: unlinked, but sustained or in the trash (I2, I3)
    uid             bigint NOT NULL,    -- 0 .. 2^32 - 1
    gid             bigint NOT NULL,    -- 0 .. 2^32 - 1
    rdev            bigint NOT NULL,    -- device nodes: number as in stat(2); others: 0
    size            bigint NOT NULL,    -- >= 0; file: bytes; symlink: of the target; others: 0
    atime           bigint NOT NULL,    -- moves by setattr only
    mtime           bigint NOT NULL,
    ctime           bigint NOT NULL,
    version         bigint NOT NULL,    -- grows with each change of a file's bytes; equal version
                                        -- means equal bytes
    parent          bigint NOT NULL,    -- directories: parent (root: 1); in the trash, whatever the
                                        -- type: the directory it was removed from; others with one
                                        -- link: the directory of its name, or 0; all else: 0
    holes           bigint NOT NULL DEFAULT 0,  -- files: bytes below size that no ref covers;
                                        -- others: 0
    borrowed        bigint NOT NULL DEFAULT 0   -- files: bytes that only borrowed refs cover, and
                                        -- that this inode does not count; others: 0
) WITH (fillfactor = 70);

-- Directory entries.
CREATE TABLE dentry (
    parent          bigint NOT NULL,
    name            bytea NOT NULL,     -- 1 to 255 bytes, no '/', no NUL, not '.' nor '..'
    ino             bigint NOT NULL,
    cookie          bigint NOT NULL,    -- >= 1; place in readdir: stays while the name stays, also
                                        -- when another inode takes the name
    PRIMARY KEY (parent, name)
);
CREATE UNIQUE INDEX dentry_cookie ON dentry (parent, cookie);

-- Refs: which part of which slice is visible where. Later refs (higher ord) overlay earlier ones;
-- bytes that no ref covers are zero.
CREATE TABLE slice (
    inode           bigint NOT NULL,
    chunk           bigint NOT NULL,    -- pos / 64 MiB
    ord             bigint NOT NULL,    -- version of the file that the ref made
    pos             bigint NOT NULL,    -- >= 0; offset in the file
    slice_id        bigint NOT NULL,    -- >= 1
    size            bigint NOT NULL,    -- bytes of the whole slice
    off             bigint NOT NULL,    -- >= 0; where the visible part starts in the slice
    length          bigint NOT NULL,    -- >= 1; visible bytes; truncate clips it
    checksums       bytea NOT NULL,     -- big-endian crc32c per 128 KiB of the slice; inline: empty
    is_inline       boolean NOT NULL,   -- the bytes stand in `inline`, not in the object store
    borrowed        boolean NOT NULL DEFAULT false, -- the ref of a clone, which does not count the
                                        -- bytes; all refs of one slice in one inode agree
    PRIMARY KEY (inode, chunk, ord)
);
-- For all that releases slices, which asks whether another inode still uses them.
CREATE INDEX slice_object ON slice (slice_id);
CREATE INDEX slice_borrowed ON slice (slice_id) WHERE borrowed;

-- Slices whose refs are all borrowed: no inode counts them, so they count here, with their whole size
-- (functions/1_sharing.sql).
CREATE TABLE shared_slice (
    slice_id        bigint PRIMARY KEY,
    bytes           bigint NOT NULL
);

-- Bytes of slices of at most 64 KiB.
CREATE TABLE inline (
    slice_id        bigint PRIMARY KEY,
    data            bytea NOT NULL      -- 1 to 65,536 bytes
);
ALTER TABLE inline ALTER COLUMN data SET STORAGE EXTERNAL;  -- compressing costs more than it saves

-- Targets of symbolic links.
CREATE TABLE symlink (
    ino             bigint PRIMARY KEY,
    target          bytea NOT NULL CHECK (octet_length(target) BETWEEN 1 AND 4095)
);

-- Extended attributes.
CREATE TABLE xattr (
    ino             bigint NOT NULL,
    name            bytea NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
    value           bytea NOT NULL CHECK (octet_length(value) <= 65536),
    PRIMARY KEY (ino, name)
);

-- Registered sessions; see SESSIONS above. The row goes when the session has ended and nothing is
-- left to reclaim.
CREATE TABLE session (
    session_id      bigint PRIMARY KEY,
    epoch           bigint NOT NULL,    -- generation of the mount's registration
    kind            text NOT NULL CHECK (octet_length(kind) <= 32), -- 'mount', 'http', ...
    channel         text CHECK (octet_length(channel) <= 63),   -- NOTIFY channel for recalls of
                                        -- leases; random; NULL: takes no leases
    started_at      timestamptz NOT NULL,
    heartbeat_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    suspected_at    timestamptz,        -- first step of reaping; NULL: not suspected
    fenced_at       timestamptz,        -- NULL: alive
    snapshot_at     timestamptz,        -- the session still reads what files consisted of then (an
                                        -- HTTP GET, a dump); NULL: it reads nothing old
    tenure          bigint NOT NULL DEFAULT 0,  -- grows when others took the session's leases away
    run             timestamptz,        -- run of the database (`lease`) that the session knew last;
                                        -- it keeps nothing by lease from an older one
    process         text CHECK (octet_length(process) <= 120),  -- of a mount: see hosts.py; others on
                                        -- its host fence it when that process is dead
    delegates       boolean NOT NULL DEFAULT false, -- takes write delegations
    alive_since     timestamptz         -- since then the session has not expired; NULL: not known
) WITH (fillfactor = 50);

-- Read leases of sessions on directories; rules: functions/1_leases.sql. The row (0, 0) names the
-- present run of the database by its taken_at: `survey` writes it.
-- UNLOGGED: after a crash of PostgreSQL all leases are void and all mounts drop their caches.
CREATE UNLOGGED TABLE lease (
    ino             bigint NOT NULL,    -- the directory
    session_id      bigint NOT NULL,
    taken_at        timestamptz NOT NULL,
    number          bigint NOT NULL DEFAULT 0,  -- of the call that took it; grows within a session
    PRIMARY KEY (ino, session_id)
);

-- Directories that a session is about to change: until then no other session takes a lease there.
CREATE UNLOGGED TABLE recall (
    ino             bigint NOT NULL,
    session_id      bigint NOT NULL,
    until           timestamptz NOT NULL,
    PRIMARY KEY (ino, session_id)
);

-- Write delegations of sessions on directories; rules: functions/1_delegations.sql. The session also
-- has a lease on each. Unlike `lease`, the table survives a crash of PostgreSQL, because the session
-- has changes that it answered and has not sent.
CREATE TABLE delegation (
    ino             bigint PRIMARY KEY, -- the directory
    session_id      bigint NOT NULL
);
CREATE INDEX delegation_session ON delegation (session_id);

-- Room that sessions with delegations have reserved: it counts in the quota, and not in the usage.
CREATE TABLE reservation (
    session_id      bigint PRIMARY KEY,
    bytes           bigint NOT NULL,    -- >= 0
    inodes          bigint NOT NULL     -- >= 0
) WITH (fillfactor = 50);

-- Files with advisory locks; rules: functions/6_locks.sql. A row stays for some time after its last
-- lock. UNLOGGED: after a crash of PostgreSQL sessions state their locks again.
CREATE UNLOGGED TABLE lock_file (
    ino             bigint PRIMARY KEY,
    delegate        bigint NOT NULL,    -- session that decides about the locks alone; 0: none
    last_session    bigint NOT NULL,    -- session of the last call
    shared_at       timestamptz         -- when calls of two sessions last followed each other
) WITH (fillfactor = 50);
CREATE INDEX lock_file_delegate ON lock_file (delegate) WHERE delegate <> 0;

-- Advisory locks. The rows of a delegate mean nothing. Locks of one owner do not overlap.
CREATE UNLOGGED TABLE file_lock (
    ino             bigint NOT NULL,
    space           integer NOT NULL,   -- 0: fcntl, on ranges; 1: flock, on the whole file
    session_id      bigint NOT NULL,
    owner           bigint NOT NULL,    -- process or open file in the session: the kernel's number
    mode            integer NOT NULL,   -- 1: shared; 2: exclusive
    first           bigint NOT NULL,    -- >= 0; first byte
    last            bigint NOT NULL,    -- >= first; last byte
    pid             integer NOT NULL,   -- process that took it; means something on its host only
    PRIMARY KEY (ino, space, session_id, owner, first)
);
CREATE INDEX file_lock_session ON file_lock (session_id);

-- Requests that wait for locks of other owners.
CREATE UNLOGGED TABLE lock_waiter (
    session_id      bigint NOT NULL,
    ticket          bigint NOT NULL,    -- number of the wait in its session
    ino             bigint NOT NULL,
    space           integer NOT NULL,   -- this and the next columns as in file_lock
    owner           bigint NOT NULL,
    mode            integer NOT NULL,
    first           bigint NOT NULL,
    last            bigint NOT NULL,
    is_process      boolean NOT NULL,   -- the owner is a process: its wait can close a circle
    since           timestamptz NOT NULL,   -- place in the queue
    seen_at         timestamptz NOT NULL,   -- when the session last repeated the request
    PRIMARY KEY (session_id, ticket)
);
CREATE INDEX lock_waiter_file ON lock_waiter (ino);

-- Inodes that sessions hold open, even without a name.
CREATE TABLE sustained (
    ino             bigint NOT NULL,
    session_id      bigint NOT NULL,
    doomed          boolean NOT NULL DEFAULT false, -- a detached directory whose tree this session
                                        -- is removing; else a file open in this session
    PRIMARY KEY (ino, session_id)
);
CREATE INDEX sustained_session ON sustained (session_id, doomed);

-- Use of sessions that have ended, folded into one row. Live sessions book their changes of use in
-- `op_result`, so that no row is written by two calls at once.
CREATE TABLE usage (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    bytes           bigint NOT NULL,
    inodes          bigint NOT NULL,
    shared          bigint NOT NULL DEFAULT 0   -- sum of shared_slice.bytes; counts too
) WITH (fillfactor = 50);

-- Slices in the object store that no ref uses. Collection deletes their objects when no session can
-- read them: when `deleted_at` is older than a grace period (for reads in progress), and older than
-- the last heartbeat and `snapshot_at` of every live session. Collection checks I8 again before it
-- deletes objects, and deletes the row afterwards. Sessions also insert ids that they gave up (after
-- an upload whose commit failed).
CREATE TABLE deleted (
    slice_id        bigint PRIMARY KEY,
    size            bigint NOT NULL,    -- bytes of the slice, or what it may have at most
    deleted_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Slice ids given to sessions. A live session puts ids that it gives up into `deleted`; an id in a
-- range of an ended session that is neither in use nor in `deleted` was not committed, so its objects
-- are garbage. This needs no listing of the bucket.
CREATE TABLE slice_range (
    first           bigint PRIMARY KEY,
    count           bigint NOT NULL CHECK (count BETWEEN 1 AND 1048576),
    session_id      bigint NOT NULL,
    ended_at        timestamptz         -- when upkeep first saw that the session has ended; the row
                                        -- goes, with what is garbage in it, a grace later
);

-- Removed names that can be restored: the last name of each inode. The inode keeps its slices and
-- attributes, has nlink 0 and does not count (I10) unless a session has it open. The trash is off if
-- volume.trash_seconds is 0. A name that was removed while its inode had others is in removed_link.
CREATE TABLE trash (
    parent          bigint NOT NULL,    -- directory it was removed from; may be in the trash or gone
    name            bytea NOT NULL,     -- as dentry.name; several may have the same
    ino             bigint NOT NULL,
    bytes           bigint NOT NULL,    -- >= 0; what the trash keeps for it (I15)
    deleted_at      timestamptz NOT NULL,
    dir_mtime       bigint,             -- mtime of `parent` before the removal, which set it to
                                        -- deleted_at; NULL: not known, or the name was replaced
    PRIMARY KEY (parent, name, ino)
);
CREATE INDEX trash_age ON trash (deleted_at, ino);

-- Names that were removed while their inode had others. They keep no bytes. The row is deleted when
-- it is too old, or when its inode is freed. The inode may have names, or be in the trash itself.
CREATE TABLE removed_link (
    ino             bigint NOT NULL,    -- not a directory
    parent          bigint NOT NULL,    -- as in trash
    name            bytea NOT NULL,
    deleted_at      timestamptz NOT NULL,
    dir_mtime       bigint,             -- as in trash
    PRIMARY KEY (ino, parent, name)
);
CREATE INDEX removed_link_age ON removed_link (deleted_at, ino);

-- Snapshots of trees. Each is a directory entry of `.snapshots` in the root, with a tree of its own below
-- it (functions/5_clones.sql).
CREATE TABLE snapshot (
    name            bytea PRIMARY KEY,
    ino             bigint NOT NULL,    -- top of the tree
    path            bytea NOT NULL,     -- of the source, when the snapshot was made
    created_at      timestamptz NOT NULL,
    inodes          bigint NOT NULL,    -- of the tree
    bytes           bigint NOT NULL     -- of its files, less holes
);

-- The session that does the upkeep of trash and garbage, and until when. It saves the work of the
-- other sessions; two at the same time do no harm.
CREATE TABLE upkeep (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    session_id      bigint NOT NULL,
    until           timestamptz NOT NULL
);

-- Slots of live sessions: each mutating call uses one, and batches of changes use slot 0. The row lock serialises a repeated call with
-- its first copy. The row shows whether that copy was applied, and its answer. Without the row the
-- session is fenced. A failed call changes nothing and is not stored.
CREATE TABLE op_result (
    session_id      bigint NOT NULL,
    slot            integer NOT NULL,
    epoch           bigint NOT NULL,
    op_seq          bigint NOT NULL,    -- last call applied through this slot; 0: none
    ino             bigint NOT NULL,    -- the inode it answered; 0: none
    flag            boolean NOT NULL,   -- the yes or no it answered
    bytes           bigint NOT NULL,    -- use booked through this slot
    inodes          bigint NOT NULL,
    PRIMARY KEY (session_id, slot)
) WITH (fillfactor = 30);
