-- Functions of schema `wrkfs`: one per operation, shared by all volumes of the metadata database.
--
-- They are SECURITY INVOKER and name tables without a schema: the caller's search_path selects the
-- tables of its own volume, with its own rights. They return an errno (0: success) and raise nothing,
-- because exception blocks are subtransactions. Values are Linux errno numbers. 11 (EAGAIN) means that
-- a row changed between reading and locking: nothing was done, call again. -1 means that the session
-- is fenced. -2 means that a recall of leases is in progress (1_leases.sql): nothing was done, call
-- again soon. -3 means that a write delegation of another session covers the answer
-- (1_delegations.sql).
--
-- Every mutating function begins with (session, epoch, slot, seq): see op_begin. It either does
-- everything, or changes nothing but times. It detects all errors before the first change.
-- Asynchronous commit is the connection's setting. Functions that must be durable when they return
-- set synchronous_commit to on for their own transaction, because a function's SET clause ends before
-- the commit. A durable commit flushes everything committed before it.
--
-- Round trips measured through PostgresMeta over a Unix socket, one client, microseconds, tenth
-- percentile on two cores that others use too (SELECT 1: 17; a WAL flush there: 200 to 300):
--   getattr 60 · lookup 69 · file_map of 4 KiB inline 111 · open 220 (it writes the sustained row),
--   again 113 · release 105 · create 191 · mkdir 232 · setattr 129 · rename 246 · unlink of a 4 KiB
--   file 330 · commit of 4 KiB inline over an older one 344, durable and new 650 · create + durable
--   commit 930 · sync 290 · 1,000 entries of readdir 4,000 · remove_tree of 5,050 inodes 55,000

CREATE SCHEMA wrkfs;
REVOKE ALL ON SCHEMA wrkfs FROM PUBLIC;
GRANT USAGE ON SCHEMA wrkfs TO PUBLIC;

-- Digest of the installed functions; only installers use it.
CREATE TABLE wrkfs.release (digest text NOT NULL);

-- The answer of most functions: errno, a flag, attributes of one inode (NULL with an errno).
CREATE TYPE wrkfs.reply AS (
    errno integer, flag boolean,
    ino bigint, mode integer, nlink integer, uid bigint, gid bigint, rdev bigint, size bigint,
    atime bigint, mtime bigint, ctime bigint, version bigint, parent bigint, holes bigint,
    borrowed bigint
);

-- A reply with the file's refs, oldest first (NULL: none). ref_inline is NULL for objects.
CREATE TYPE wrkfs.map_reply AS (
    errno integer, flag boolean,
    ino bigint, mode integer, nlink integer, uid bigint, gid bigint, rdev bigint, size bigint,
    atime bigint, mtime bigint, ctime bigint, version bigint, parent bigint, holes bigint,
    borrowed bigint,
    ref_pos bigint[], ref_slice bigint[], ref_size bigint[], ref_off bigint[], ref_length bigint[],
    ref_checksums bytea[], ref_inline bytea[]
);

-- One entry of a directory, or one row with an errno. settled: see 1_leases.sql.
CREATE TYPE wrkfs.entry_reply AS (
    errno integer, cookie bigint, name bytea,
    ino bigint, mode integer, nlink integer, uid bigint, gid bigint, rdev bigint, size bigint,
    atime bigint, mtime bigint, ctime bigint, version bigint, parent bigint, holes bigint,
    borrowed bigint, settled boolean
);

-- Bytes and inodes that a change returned to the volume.
CREATE TYPE wrkfs.freed AS (bytes bigint, inodes bigint);

-- Returns the database's clock in nanoseconds since the Unix epoch.
CREATE FUNCTION wrkfs.now_ns() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000
$$;

-- Converts a time of `now_ns` to the type of the trash; both have whole microseconds. (STABLE like
-- the sum: otherwise PostgreSQL does not inline it.)
CREATE FUNCTION wrkfs.moment(a_ns bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT timestamptz 'epoch' + a_ns / 1000 * interval '1 microsecond'
$$;

-- Begins a mutating call. Locks the session's slot, and so waits for an earlier copy of the same call.
-- Returns 0: continue; 1: an earlier copy was applied, return the answer of the slot; -1: fenced.
CREATE FUNCTION wrkfs.op_begin(a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
BEGIN
    SELECT o.op_seq INTO v_seq FROM op_result o
    WHERE o.session_id = a_session AND o.slot = a_slot AND o.epoch = a_epoch
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN -1; END IF;
    IF v_seq = a_seq THEN RETURN 1; END IF;
    -- A lower number is a late copy of a call whose answer the client has received.
    IF v_seq > a_seq THEN RETURN -1; END IF;
    RETURN 0;
END $$;

-- Ends a mutating call that was applied: stores its answer and books its change of usage. Returns 0,
-- so that an assignment can call it: PERFORM would be a statement of its own.
CREATE FUNCTION wrkfs.op_end(
    a_session bigint, a_slot integer, a_seq bigint, a_ino bigint, a_flag boolean,
    a_bytes bigint, a_inodes bigint
) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    UPDATE op_result o SET op_seq = a_seq, ino = a_ino, flag = a_flag,
        bytes = o.bytes + a_bytes, inodes = o.inodes + a_inodes
    WHERE o.session_id = a_session AND o.slot = a_slot;
    RETURN 0;
END $$;

-- Does the same for a call that knows its growth before it changes anything. It also makes the last
-- two checks: the quota, and leases of other sessions on directory a_home (0: none). The caller has
-- locked the rows that it changes. Returns 0: continue, no check follows; 122 or -2: nothing was done.
-- One statement replaces the four of over_quota, recalls and op_end.
CREATE FUNCTION wrkfs.op_pass(
    a_session bigint, a_slot integer, a_seq bigint, a_ino bigint, a_flag boolean,
    a_bytes bigint, a_inodes bigint, a_home bigint
) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    UPDATE op_result o SET op_seq = a_seq, ino = a_ino, flag = a_flag,
        bytes = o.bytes + a_bytes, inodes = o.inodes + a_inodes
    WHERE o.session_id = a_session AND o.slot = a_slot
        AND NOT EXISTS (SELECT 1 FROM lease l
            WHERE l.ino = a_home AND l.session_id <> a_session AND l.ino > 0)
        AND (a_bytes <= 0 AND a_inodes <= 0
            OR NOT EXISTS (SELECT 1 FROM volume v
                WHERE v.bytes_limit IS NOT NULL OR v.inodes_limit IS NOT NULL)
            OR NOT wrkfs.over_quota(a_bytes, a_inodes));
    IF FOUND THEN RETURN 0; END IF;
    IF wrkfs.over_quota(a_bytes, a_inodes) THEN RETURN 122; END IF;
    IF wrkfs.recalls(a_session, ARRAY[a_home]) THEN RETURN -2; END IF;
    RETURN wrkfs.op_end(a_session, a_slot, a_seq, a_ino, a_flag, a_bytes, a_inodes);
END $$;

-- The answer of a call that op_begin did not admit: the stored answer with current attributes, or the
-- errno. ESTALE if the inode has been removed since.
CREATE FUNCTION wrkfs.op_repeat(a_state integer, a_session bigint, a_slot integer)
RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_ino bigint;
    v_flag boolean;
BEGIN
    IF a_state < 0 THEN r.errno := a_state; RETURN r; END IF;
    SELECT o.ino, o.flag INTO v_ino, v_flag FROM op_result o
    WHERE o.session_id = a_session AND o.slot = a_slot;
    SELECT 0, v_flag, i.* INTO r FROM inode i WHERE i.ino = v_ino;
    IF FOUND AND NOT wrkfs.is_gone(r.ino, r.nlink) THEN RETURN r; END IF;
    r := NULL;
    r.errno := CASE WHEN v_ino = 0 THEN 0 ELSE 116 END;
    r.flag := v_flag;
    RETURN r;
END $$;

-- Does the same for calls that return a map.
CREATE FUNCTION wrkfs.op_repeat_map(a_state integer, a_session bigint, a_slot integer)
RETURNS wrkfs.map_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.map_reply;
    v wrkfs.reply;
BEGIN
    v := wrkfs.op_repeat(a_state, a_session, a_slot);
    IF v.errno <> 0 THEN r.errno := v.errno; RETURN r; END IF;
    r := wrkfs.file_map(v.ino);
    r.flag := v.flag;
    RETURN r;
END $$;

-- Returns the current usage of the volume, and its limits.
CREATE FUNCTION wrkfs.statfs(
    OUT bytes_used bigint, OUT bytes_limit bigint, OUT inodes_used bigint, OUT inodes_limit bigint
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT v.bytes_limit, v.inodes_limit INTO bytes_limit, inodes_limit FROM volume v;
    SELECT u.bytes + u.shared, u.inodes INTO bytes_used, inodes_used FROM usage u;
    SELECT bytes_used + coalesce(sum(o.bytes), 0), inodes_used + coalesce(sum(o.inodes), 0)
    INTO bytes_used, inodes_used FROM op_result o;
END $$;

-- Returns true if this growth would exceed a quota. Exact, except for concurrent calls.
CREATE FUNCTION wrkfs.over_quota(a_bytes bigint, a_inodes bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_use record;
BEGIN
    -- A volume without a quota does not compute the sums.
    PERFORM 1 FROM volume v WHERE v.bytes_limit IS NOT NULL OR v.inodes_limit IS NOT NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    SELECT * INTO v_use FROM wrkfs.statfs();
    SELECT v_use.bytes_used + coalesce(sum(r.bytes), 0),
        v_use.inodes_used + coalesce(sum(r.inodes), 0)
    INTO v_use.bytes_used, v_use.inodes_used FROM reservation r;
    RETURN (a_bytes > 0 AND v_use.bytes_used + a_bytes > v_use.bytes_limit) IS TRUE
        OR (a_inodes > 0 AND v_use.inodes_used + a_inodes > v_use.inodes_limit) IS TRUE;
END $$;

-- Returns the reason why an operation in a directory found nothing: ENOTDIR or ENOENT.
CREATE FUNCTION wrkfs.why_not(a_parent bigint) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM inode i WHERE i.ino = a_parent AND i.mode >> 12 <> 4;
    RETURN CASE WHEN FOUND THEN 20 ELSE 2 END;
END $$;

-- Locks inode rows in the order that all functions use.
CREATE FUNCTION wrkfs.lock_inodes(a_inos bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM inode i WHERE i.ino = ANY (a_inos) ORDER BY i.ino FOR NO KEY UPDATE;
END $$;

-- Returns the mode of a file after a change that removes set-id bits, as in Linux.
CREATE FUNCTION wrkfs.without_set_ids(a_mode integer) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT a_mode & ~(CASE WHEN a_mode & 8 <> 0 THEN 3072 ELSE 2048 END)
$$;

-- Releases slices that lost refs. One that still has refs, of the same inode in a neighbouring chunk or
-- of other inodes (1_sharing.sql), stays. Inline bytes are deleted at once, objects wait in `deleted`.
CREATE FUNCTION wrkfs.drop_slices(a_ids bigint[], a_sizes bigint[], a_inline boolean[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_shared bigint[];
    v_unused bigint[];
BEGIN
    SELECT array_agg(g.id) INTO v_shared FROM unnest(a_ids) AS g (id)
    WHERE EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = g.id)
        OR EXISTS (SELECT 1 FROM shared_slice h WHERE h.slice_id = g.id);
    IF v_shared IS NOT NULL THEN v_unused := wrkfs.settle_shared(v_shared); END IF;
    IF true = ANY (a_inline) THEN
        DELETE FROM inline n WHERE n.slice_id = ANY (a_ids)
            AND (v_shared IS NULL OR n.slice_id <> ALL (v_shared) OR n.slice_id = ANY (v_unused));
    END IF;
    IF false = ANY (a_inline) THEN
        INSERT INTO deleted (slice_id, size)
        SELECT DISTINCT g.id, g.size FROM unnest(a_ids, a_sizes, a_inline)
            AS g (id, size, is_inline)
        WHERE NOT g.is_inline
            AND (v_shared IS NULL OR g.id <> ALL (v_shared) OR g.id = ANY (v_unused))
        ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- Frees inodes with all their rows; the caller holds their locks.
CREATE FUNCTION wrkfs.free_inodes(a_inos bigint[]) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.freed;
    v_links bigint;
    v_has_refs boolean;
    v_ids bigint[];
    v_sizes bigint[];
    v_inline boolean[];
BEGIN
    WITH gone AS (
        DELETE FROM inode i WHERE i.ino = ANY (a_inos)
        RETURNING i.mode, i.size - i.holes AS size, i.borrowed
    )
    SELECT coalesce(sum(g.size - g.borrowed) FILTER (WHERE g.mode >> 12 = 8), 0), count(*),
        count(*) FILTER (WHERE g.mode >> 12 = 10),
        coalesce(bool_or(g.mode >> 12 = 8 AND g.size > 0), false)
    INTO r.bytes, r.inodes, v_links, v_has_refs FROM gone g;
    -- Files without bytes have no refs.
    IF v_has_refs THEN
        WITH gone AS (
            DELETE FROM slice s WHERE s.inode = ANY (a_inos)
            RETURNING s.slice_id, s.size, s.is_inline
        )
        SELECT array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
        INTO v_ids, v_sizes, v_inline FROM gone g;
        IF v_ids IS NOT NULL THEN PERFORM wrkfs.drop_slices(v_ids, v_sizes, v_inline); END IF;
    END IF;
    IF v_links > 0 THEN
        DELETE FROM symlink l WHERE l.ino = ANY (a_inos);
    END IF;
    DELETE FROM xattr x WHERE x.ino = ANY (a_inos);
    DELETE FROM removed_link l WHERE l.ino = ANY (a_inos);
    RETURN r;
END $$;

-- Returns true if no session can reach an inode without a name. The trash does not count.
CREATE FUNCTION wrkfs.is_gone(a_ino bigint, a_nlink integer) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF a_nlink > 0 THEN RETURN false; END IF;
    PERFORM 1 FROM sustained s WHERE s.ino = a_ino;
    RETURN NOT FOUND;
END $$;

-- Returns true if a removed regular file lost its last name just now. Between the lookup of a name
-- and the call on its inode another session may replace the name. The caller then still finds the
-- file, as it would in one kernel. Otherwise a name that always existed would seem to be missing.
CREATE FUNCTION wrkfs.is_just_gone(a_ino bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM inode i JOIN trash t ON t.parent = i.parent AND t.ino = i.ino
    WHERE i.ino = a_ino AND i.parent <> 0 AND i.mode >> 12 = 8
        AND t.deleted_at > clock_timestamp() - interval '10 seconds';
    RETURN FOUND;
END $$;

-- Returns true if the volume has a trash. Then it contains everything, also empty and new files, so
-- that a tree can be restored completely.
CREATE FUNCTION wrkfs.has_trash() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM volume v WHERE v.trash_seconds > 0;
    RETURN FOUND;
END $$;

-- Removes one link of a locked non-directory whose entry was deleted or replaced at a_now. With its
-- last link the inode moves to the trash; without a trash it is freed, unless it is open. a_before:
-- the directory's mtime before the removal of its entry; NULL if another inode took the name.
CREATE FUNCTION wrkfs.drop_link(
    a_ino bigint, a_parent bigint, a_name bytea, a_now bigint, a_before bigint
) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.freed := (0, 0);
    v record;
    v_open boolean;
BEGIN
    SELECT i.nlink, i.mode, i.size - i.holes - i.borrowed AS held INTO v
    FROM inode i WHERE i.ino = a_ino;
    IF v.nlink > 1 THEN
        -- The remaining name is not looked up: from here on no session caches the inode.
        UPDATE inode i SET nlink = i.nlink - 1, ctime = a_now, parent = 0 WHERE i.ino = a_ino;
        INSERT INTO removed_link AS l (ino, parent, name, deleted_at, dir_mtime)
        SELECT a_ino, a_parent, a_name, wrkfs.moment(a_now), a_before FROM volume one
        WHERE one.trash_seconds > 0 AND NOT wrkfs.is_read_only(a_ino)
        ON CONFLICT (ino, parent, name) DO UPDATE
        SET deleted_at = excluded.deleted_at, dir_mtime = excluded.dir_mtime;
        RETURN r;
    END IF;
    PERFORM 1 FROM sustained s WHERE s.ino = a_ino;
    v_open := FOUND;
    IF wrkfs.has_trash() AND NOT wrkfs.is_read_only(a_ino) THEN
        UPDATE inode i SET nlink = 0, ctime = a_now, parent = a_parent WHERE i.ino = a_ino;
        IF NOT v_open THEN
            r := (CASE WHEN v.mode >> 12 = 8 THEN v.held ELSE 0 END, 1);
            IF r.bytes > 0 THEN PERFORM wrkfs.hand_over(ARRAY[a_ino]); END IF;
        END IF;
        INSERT INTO trash (parent, name, ino, bytes, deleted_at, dir_mtime)
        SELECT a_parent, a_name, a_ino,
            CASE WHEN v_open OR i.mode >> 12 <> 8 THEN 0 ELSE i.size - i.holes - i.borrowed END,
            wrkfs.moment(a_now), a_before
        FROM inode i WHERE i.ino = a_ino;
        RETURN r;
    END IF;
    IF NOT v_open THEN RETURN wrkfs.free_inodes(ARRAY[a_ino]); END IF;
    UPDATE inode i SET nlink = 0, ctime = a_now, parent = 0 WHERE i.ino = a_ino;
    RETURN r;
END $$;

-- Ends an empty locked directory whose entry was deleted or replaced. With its last name it moves to
-- the trash, or is freed. a_now and a_before are those of `drop_link`.
CREATE FUNCTION wrkfs.drop_directory(
    a_ino bigint, a_parent bigint, a_name bytea, a_now bigint, a_before bigint
) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM delegation d WHERE d.ino = a_ino;
    IF NOT wrkfs.has_trash() THEN RETURN wrkfs.free_inodes(ARRAY[a_ino]); END IF;
    UPDATE inode i SET nlink = 0, ctime = a_now, parent = a_parent WHERE i.ino = a_ino;
    INSERT INTO trash (parent, name, ino, bytes, deleted_at, dir_mtime)
    VALUES (a_parent, a_name, a_ino, 0, wrkfs.moment(a_now), a_before);
    RETURN (0::bigint, 1::bigint);
END $$;

-- Ends locked non-directories that have no name and no holder. Those with a row in the trash stay
-- there, the others are freed. None of them counts in the usage from now on.
CREATE FUNCTION wrkfs.let_go(a_inos bigint[]) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.freed;
    v_kept bigint[];
    v_bytes bigint;
    v_inodes bigint;
BEGIN
    SELECT array_agg(i.ino), count(*),
        coalesce(sum(i.size - i.holes - i.borrowed) FILTER (WHERE i.mode >> 12 = 8), 0)
    INTO v_kept, v_inodes, v_bytes FROM inode i
    WHERE i.ino = ANY (a_inos) AND i.parent <> 0
        AND EXISTS (SELECT 1 FROM trash t WHERE t.parent = i.parent AND t.ino = i.ino);
    IF v_inodes = 0 THEN RETURN wrkfs.free_inodes(a_inos); END IF;
    PERFORM wrkfs.hand_over(v_kept);
    UPDATE trash t
    SET bytes = CASE WHEN i.mode >> 12 = 8 THEN i.size - i.holes - i.borrowed ELSE 0 END
    FROM inode i WHERE i.ino = ANY (v_kept) AND t.parent = i.parent AND t.ino = i.ino;
    r := wrkfs.free_inodes(
        ARRAY(SELECT g.ino FROM unnest(a_inos) AS g (ino) EXCEPT SELECT unnest(v_kept)));
    r.bytes := r.bytes + v_bytes;
    r.inodes := r.inodes + v_inodes;
    RETURN r;
END $$;
