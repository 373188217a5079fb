-- Advisory locks (fcntl and flock) of all sessions of a volume.
--
--  * A lock is a row of `file_lock`: a range of bytes of a file, its owner and its mode. The rules of
--    conflict, splitting and merging are those of Linux; wrkfs/meta/lock_rules.py states them as pure
--    arithmetic, and a test compares both. Ends of ranges are inclusive.
--  * The row of the file in `lock_file` serialises all calls on its locks.
--  * Delegation: lock_file.delegate names a session that decides about the locks of the file alone.
--    Its rows in `file_lock` then mean nothing. It receives the delegation with the first lock that it
--    takes, if no other session has used locks of the file for a second and no request waits. It uses
--    the delegation only while its heartbeats are recent, as it does with leases. A call of another
--    session notifies it ('l:INODE'), changes nothing, and returns `recalled`. The delegate commits
--    the bytes that it has not committed yet, and calls `return_locks` with all locks of the file.
--  * Waiting: a request that cannot be granted leaves a row in `lock_waiter`. A call that releases a
--    lock notifies the sessions that wait ('w:INODE'), and they repeat their requests. Sessions also
--    repeat them once a second. A request queues behind an earlier one that conflicts with it, unless
--    its owner has locks of the file already, or it does not want to wait. A waiting session that has
--    not repeated its request for two seconds loses its place until it does.
--  * A file with waiters is never delegated. So the rows show every process that waits for another
--    one, on whichever host, and `closes_circle` finds deadlocks.
--  * A holder that has expired is fenced by a session that needs its lock, with all its changes that
--    are not committed: so nothing that it does later can contradict the next owner. A session may do
--    so only if its own heartbeats have been regular for the whole lease time (session.alive_since).
--    Otherwise the database was away, and all holders first have the lease time for a heartbeat.
--  * The tables are UNLOGGED. After a crash of PostgreSQL each session states its locks again
--    (`restore_locks`) before it does anything else, and no session does anything before all others
--    that are alive have done so (`survey`). A session that comes later loses the locks that another
--    one has taken in the meantime.

-- The answer of a request. recalled: nothing was done, call again soon. expired: sessions that the
-- caller should fence, because they are in the way and have expired. mode to pid: the conflicting
-- lock of `test_lock`; holder: its session.
CREATE TYPE wrkfs.lock_reply AS (
    errno integer, flag boolean, recalled boolean, delegated boolean, version bigint,
    expired bigint[], mode integer, first bigint, last bigint, pid integer, holder bigint
);

-- Returns those of a_holders that have expired, if a_session may conclude that they are dead.
CREATE FUNCTION wrkfs.expired_holders(a_session bigint, a_holders bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM 1 FROM session s WHERE s.session_id = a_session
        AND s.alive_since <= v_now - wrkfs.lease_time() AND s.expires_at > v_now;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN (SELECT array_agg(s.session_id) FROM session s
        WHERE s.session_id = ANY (a_holders) AND s.session_id <> a_session
            AND s.fenced_at IS NULL AND s.expires_at < v_now);
END $$;

-- Returns the other session to which the locks of a file are delegated, after notifying it; 0: none.
CREATE FUNCTION wrkfs.recall_locks(a_session bigint, a_ino bigint, a_delegate bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF a_delegate IN (0, a_session) THEN RETURN 0; END IF;
    PERFORM pg_notify(s.channel, 'l:' || a_ino) FROM session s
    WHERE s.session_id = a_delegate AND s.fenced_at IS NULL AND s.channel IS NOT NULL;
    -- Only a hostile row names a session that does not exist.
    RETURN CASE WHEN FOUND THEN a_delegate ELSE 0 END;
END $$;

-- Locks the row of a file for a call of a_session; returns as `recall_locks` does.
CREATE FUNCTION wrkfs.enter_lock_file(a_session bigint, a_ino bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_delegate bigint;
BEGIN
    INSERT INTO lock_file AS f (ino, delegate, last_session, shared_at)
    VALUES (a_ino, 0, a_session, NULL)
    ON CONFLICT (ino) DO UPDATE SET last_session = a_session, shared_at =
        CASE WHEN f.last_session = a_session THEN f.shared_at ELSE clock_timestamp() END
    RETURNING f.delegate INTO v_delegate;
    RETURN wrkfs.recall_locks(a_session, a_ino, v_delegate);
END $$;

-- Notifies the sessions that wait for locks of these files.
CREATE FUNCTION wrkfs.wake_lock_waiters(a_inos bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM lock_waiter w WHERE w.ino = ANY (a_inos);
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM pg_notify(s.channel, 'w:' || array_to_string(ARRAY(
        SELECT DISTINCT w.ino FROM lock_waiter w
        WHERE w.session_id = s.session_id AND w.ino = ANY (a_inos) LIMIT 100), ','))
    FROM session s WHERE s.channel IS NOT NULL AND s.session_id IN (
        SELECT w.session_id FROM lock_waiter w WHERE w.ino = ANY (a_inos));
END $$;

-- Returns the sessions whose locks conflict with a request; NULL: none.
CREATE FUNCTION wrkfs.lock_holders(
    a_session bigint, a_ino bigint, a_space integer, a_owner bigint, a_mode integer,
    a_first bigint, a_last bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(DISTINCT l.session_id)
        FROM file_lock l JOIN session s ON s.session_id = l.session_id AND s.fenced_at IS NULL
        WHERE l.ino = a_ino AND l.space = a_space
            AND (l.session_id <> a_session OR l.owner <> a_owner)
            AND (l.mode = 2 OR a_mode = 2) AND l.first <= a_last AND l.last >= a_first);
END $$;

-- Returns true if a waiting request must let an earlier one pass.
CREATE FUNCTION wrkfs.must_queue(
    a_session bigint, a_ticket bigint, a_ino bigint, a_space integer, a_owner bigint,
    a_mode integer, a_first bigint, a_last bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_since timestamptz;
BEGIN
    -- The earlier request may wait for this owner.
    PERFORM 1 FROM file_lock l WHERE l.ino = a_ino AND l.space = a_space
        AND l.session_id = a_session AND l.owner = a_owner;
    IF FOUND THEN RETURN false; END IF;
    SELECT w.since INTO v_since FROM lock_waiter w
    WHERE w.session_id = a_session AND w.ticket = a_ticket;
    PERFORM 1 FROM lock_waiter w WHERE w.ino = a_ino AND w.space = a_space
        AND (w.session_id <> a_session OR w.owner <> a_owner)
        AND (w.mode = 2 OR a_mode = 2) AND w.first <= a_last AND w.last >= a_first
        AND w.seen_at > clock_timestamp() - interval '2 s'
        AND (v_since IS NULL OR (w.since, w.session_id, w.ticket) < (v_since, a_session, a_ticket));
    RETURN FOUND;
END $$;

-- Replaces what an owner has in a range: a_mode 0 releases it. Wakes waiters if that can help them.
CREATE FUNCTION wrkfs.put_lock(
    a_session bigint, a_ino bigint, a_space integer, a_owner bigint, a_mode integer,
    a_first bigint, a_last bigint, a_pid integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_frees boolean;
BEGIN
    WITH gone AS (
        DELETE FROM file_lock l
        WHERE l.ino = a_ino AND l.space = a_space AND l.session_id = a_session
            AND l.owner = a_owner AND (l.first <= a_last AND l.last >= a_first
                OR l.mode = a_mode AND l.first - 1 <= a_last AND l.last >= a_first - 1)
        RETURNING l.mode, l.first, l.last, l.pid
    ), put AS (
        INSERT INTO file_lock (ino, space, session_id, owner, mode, first, last, pid)
        SELECT a_ino, a_space, a_session, a_owner, g.mode, g.first, a_first - 1, g.pid
        FROM gone g WHERE g.mode <> a_mode AND g.first < a_first
        UNION ALL
        SELECT a_ino, a_space, a_session, a_owner, g.mode, a_last + 1, g.last, g.pid
        FROM gone g WHERE g.mode <> a_mode AND g.last > a_last
        UNION ALL
        SELECT a_ino, a_space, a_session, a_owner, a_mode,
            least(a_first, min(g.first) FILTER (WHERE g.mode = a_mode)),
            greatest(a_last, max(g.last) FILTER (WHERE g.mode = a_mode)), a_pid
        FROM gone g HAVING a_mode <> 0
    )
    SELECT coalesce(bool_or(g.mode > a_mode), false) INTO v_frees FROM gone g;
    IF v_frees THEN PERFORM wrkfs.wake_lock_waiters(ARRAY[a_ino]); END IF;
END $$;

-- Delegates the locks of a file to a session that has just taken one. Returns false if others use them.
CREATE FUNCTION wrkfs.delegate_locks(a_session bigint, a_ino bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    UPDATE lock_file f SET delegate = a_session
    WHERE f.ino = a_ino AND (f.shared_at IS NULL OR f.shared_at < v_now - interval '1 s')
        AND NOT EXISTS (SELECT 1 FROM file_lock l
            WHERE l.ino = a_ino AND l.session_id <> a_session)
        AND NOT EXISTS (SELECT 1 FROM lock_waiter w WHERE w.ino = a_ino)
        AND EXISTS (SELECT 1 FROM session s WHERE s.session_id = a_session
            AND s.channel IS NOT NULL AND s.expires_at > v_now);
    RETURN FOUND;
END $$;

-- Returns true if the wait of a process would close a circle of processes that wait for each other.
CREATE FUNCTION wrkfs.closes_circle(
    a_session bigint, a_ino bigint, a_owner bigint, a_mode integer, a_first bigint, a_last bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM 1 FROM (
        WITH RECURSIVE blocker (session_id, owner) AS (
            SELECT l.session_id, l.owner FROM file_lock l
            WHERE l.ino = a_ino AND l.space = 0
                AND (l.session_id <> a_session OR l.owner <> a_owner)
                AND (l.mode = 2 OR a_mode = 2) AND l.first <= a_last AND l.last >= a_first
            UNION
            SELECT l.session_id, l.owner FROM blocker b
            JOIN lock_waiter w ON w.session_id = b.session_id AND w.owner = b.owner
                AND w.space = 0 AND w.is_process AND w.seen_at > v_now - interval '5 s'
            JOIN file_lock l ON l.ino = w.ino AND l.space = 0
                AND (l.session_id <> w.session_id OR l.owner <> w.owner)
                AND (l.mode = 2 OR w.mode = 2) AND l.first <= w.last AND l.last >= w.first
        )
        SELECT 1 FROM blocker b WHERE b.session_id = a_session AND b.owner = a_owner
    ) circle;
    RETURN FOUND;
END $$;

-- Sets or releases a lock. flag: granted. a_ticket: the request waits under this number if it must;
-- NULL: it does not wait. a_process: the owner is a process, so its wait can close a circle (EDEADLK).
CREATE FUNCTION wrkfs.set_lock(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_space integer, a_owner bigint, a_mode integer, a_first bigint, a_last bigint,
    a_pid integer, a_ticket bigint, a_process boolean
) RETURNS wrkfs.lock_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.lock_reply;
    v_state integer;
    v_delegate bigint;
    v_holders bigint[];
BEGIN
    r.errno := 0; r.flag := false; r.recalled := false; r.delegated := false;
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state < 0 THEN r.errno := v_state; RETURN r; END IF;
    IF v_state > 0 THEN
        -- An earlier copy was applied. Without a grant the caller asks again.
        SELECT o.flag, NOT o.flag INTO r.flag, r.recalled FROM op_result o
        WHERE o.session_id = a_session AND o.slot = a_slot;
        SELECT i.version INTO r.version FROM inode i WHERE i.ino = a_ino;
        RETURN r;
    END IF;
    v_delegate := wrkfs.enter_lock_file(a_session, a_ino);
    IF v_delegate <> 0 THEN
        r.recalled := true;
        r.expired := wrkfs.expired_holders(a_session, ARRAY[v_delegate]);
    ELSE
        IF a_mode > 0 THEN
            v_holders := wrkfs.lock_holders(
                a_session, a_ino, a_space, a_owner, a_mode, a_first, a_last);
        END IF;
        IF v_holders IS NOT NULL OR a_mode > 0 AND a_ticket IS NOT NULL AND wrkfs.must_queue(
            a_session, a_ticket, a_ino, a_space, a_owner, a_mode, a_first, a_last) THEN
            r.expired := wrkfs.expired_holders(a_session, v_holders);
            r.errno := wrkfs.wait_for_lock(a_session, a_ino, a_space, a_owner, a_mode, a_first,
                a_last, a_ticket, a_process);
            IF r.errno <> 0 THEN RETURN r; END IF;
        ELSE
            PERFORM wrkfs.put_lock(
                a_session, a_ino, a_space, a_owner, a_mode, a_first, a_last, a_pid);
            IF a_ticket IS NOT NULL THEN
                DELETE FROM lock_waiter w WHERE w.session_id = a_session AND w.ticket = a_ticket;
            END IF;
            r.flag := true;
            r.delegated := a_mode > 0 AND wrkfs.delegate_locks(a_session, a_ino);
        END IF;
    END IF;
    SELECT i.version INTO r.version FROM inode i WHERE i.ino = a_ino;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, r.flag, 0, 0);
    RETURN r;
END $$;

-- The part of `set_lock` for a request that is not granted now. Returns an errno.
CREATE FUNCTION wrkfs.wait_for_lock(
    a_session bigint, a_ino bigint, a_space integer, a_owner bigint, a_mode integer,
    a_first bigint, a_last bigint, a_ticket bigint, a_process boolean
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF a_space = 1 THEN
        -- flock(2) converts a lock in two steps, and the first one succeeds.
        PERFORM 1 FROM file_lock l WHERE l.ino = a_ino AND l.space = 1
            AND l.session_id = a_session AND l.owner = a_owner AND l.mode <> a_mode;
        IF FOUND THEN
            PERFORM wrkfs.put_lock(a_session, a_ino, 1, a_owner, 0, a_first, a_last, 0);
        END IF;
    END IF;
    IF a_ticket IS NULL THEN RETURN 0; END IF;
    IF a_process AND wrkfs.closes_circle(
        a_session, a_ino, a_owner, a_mode, a_first, a_last) THEN
        DELETE FROM lock_waiter w WHERE w.session_id = a_session AND w.ticket = a_ticket;
        PERFORM wrkfs.wake_lock_waiters(ARRAY[a_ino]);
        RETURN 35;
    END IF;
    INSERT INTO lock_waiter (session_id, ticket, ino, space, owner, mode, first, last, is_process,
        since, seen_at)
    VALUES (a_session, a_ticket, a_ino, a_space, a_owner, a_mode, a_first, a_last, a_process,
        v_now, v_now)
    ON CONFLICT (session_id, ticket) DO UPDATE SET seen_at = v_now;
    RETURN 0;
END $$;

-- Ends the wait of a request that is no longer wanted.
CREATE FUNCTION wrkfs.cancel_lock(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ticket bigint
) RETURNS wrkfs.lock_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.lock_reply;
    v_inos bigint[];
BEGIN
    r.errno := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF r.errno <> 0 THEN r.errno := least(r.errno, 0); RETURN r; END IF;
    WITH gone AS (
        DELETE FROM lock_waiter w WHERE w.session_id = a_session AND w.ticket = a_ticket
        RETURNING w.ino
    )
    SELECT array_agg(g.ino) INTO v_inos FROM gone g;
    IF v_inos IS NOT NULL THEN PERFORM wrkfs.wake_lock_waiters(v_inos); END IF;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, true, 0, 0);
    RETURN r;
END $$;

-- Finds a lock that conflicts with a request. mode NULL: there is none.
CREATE FUNCTION wrkfs.test_lock(
    a_session bigint, a_ino bigint, a_space integer, a_owner bigint, a_mode integer,
    a_first bigint, a_last bigint
) RETURNS wrkfs.lock_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.lock_reply;
    v_delegate bigint;
BEGIN
    r.errno := 0; r.flag := true; r.recalled := false;
    SELECT f.delegate INTO v_delegate FROM lock_file f WHERE f.ino = a_ino;
    IF NOT FOUND THEN RETURN r; END IF;
    v_delegate := wrkfs.recall_locks(a_session, a_ino, v_delegate);
    IF v_delegate <> 0 THEN
        r.recalled := true;
        r.expired := wrkfs.expired_holders(a_session, ARRAY[v_delegate]);
        RETURN r;
    END IF;
    SELECT l.mode, l.first, l.last, l.pid, l.session_id
    INTO r.mode, r.first, r.last, r.pid, r.holder
    FROM file_lock l JOIN session s ON s.session_id = l.session_id AND s.fenced_at IS NULL
    WHERE l.ino = a_ino AND l.space = a_space
        AND (l.session_id <> a_session OR l.owner <> a_owner)
        AND (l.mode = 2 OR a_mode = 2) AND l.first <= a_last AND l.last >= a_first
    ORDER BY l.first, l.session_id, l.owner LIMIT 1;
    RETURN r;
END $$;

-- Replaces all locks of a session on a file by these, and ends its delegation. It repeats no change,
-- so a late copy would do harm: it has a slot.
CREATE FUNCTION wrkfs.return_locks(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ino bigint,
    a_spaces integer[], a_owners bigint[], a_modes integer[], a_firsts bigint[], a_lasts bigint[],
    a_pids integer[]
) RETURNS wrkfs.lock_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.lock_reply;
BEGIN
    r.errno := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF r.errno < 0 THEN RETURN r; END IF;
    IF r.errno = 0 THEN
        UPDATE lock_file f SET delegate = 0 WHERE f.ino = a_ino AND f.delegate = a_session;
        IF NOT FOUND THEN PERFORM wrkfs.enter_lock_file(a_session, a_ino); END IF;
        DELETE FROM file_lock l WHERE l.ino = a_ino AND l.session_id = a_session;
        INSERT INTO file_lock (ino, space, session_id, owner, mode, first, last, pid)
        SELECT a_ino, g.space, a_session, g.owner, g.mode, g.first, g.last, g.pid
        FROM unnest(a_spaces, a_owners, a_modes, a_firsts, a_lasts, a_pids)
            AS g (space, owner, mode, first, last, pid)
        ON CONFLICT DO NOTHING;
        PERFORM wrkfs.wake_lock_waiters(ARRAY[a_ino]);
        PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, true, 0, 0);
    END IF;
    r.errno := 0;
    r.flag := true;
    SELECT i.version INTO r.version FROM inode i WHERE i.ino = a_ino;
    RETURN r;
END $$;

-- States the locks of a session again after a crash of the database. Returns the files whose locks the
-- session has lost, because another session has conflicting ones; NULL: none.
CREATE FUNCTION wrkfs.restore_locks(
    a_session bigint, a_epoch bigint, a_inos bigint[], a_spaces integer[], a_owners bigint[],
    a_modes integer[], a_firsts bigint[], a_lasts bigint[], a_pids integer[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_ino bigint;
    v_lost bigint[];
BEGIN
    -- A fence waits for this call, or this statement finds the session fenced.
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.epoch = a_epoch
        AND s.fenced_at IS NULL FOR SHARE;
    IF NOT FOUND THEN RETURN a_inos; END IF;
    FOR v_ino IN SELECT DISTINCT g.ino FROM unnest(a_inos) AS g (ino) ORDER BY 1 LOOP
        IF wrkfs.enter_lock_file(a_session, v_ino) <> 0 OR EXISTS (
            SELECT 1 FROM unnest(a_inos, a_spaces, a_modes, a_firsts, a_lasts)
                AS g (ino, space, mode, first, last)
            JOIN file_lock l ON l.ino = g.ino AND l.space = g.space
                AND l.session_id <> a_session AND (l.mode = 2 OR g.mode = 2)
                AND l.first <= g.last AND l.last >= g.first
            WHERE g.ino = v_ino) THEN
            v_lost := v_lost || v_ino;
            CONTINUE;
        END IF;
        INSERT INTO file_lock (ino, space, session_id, owner, mode, first, last, pid)
        SELECT v_ino, g.space, a_session, g.owner, g.mode, g.first, g.last, g.pid
        FROM unnest(a_inos, a_spaces, a_owners, a_modes, a_firsts, a_lasts, a_pids)
            AS g (ino, space, owner, mode, first, last, pid)
        WHERE g.ino = v_ino
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN v_lost;
END $$;

-- Deletes the locks, waits and delegations of a session that is being fenced.
CREATE FUNCTION wrkfs.drop_locks(a_session bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
BEGIN
    WITH freed AS (
        DELETE FROM file_lock l WHERE l.session_id = a_session RETURNING l.ino
    ), left_queue AS (
        DELETE FROM lock_waiter w WHERE w.session_id = a_session RETURNING w.ino
    ), undelegated AS (
        UPDATE lock_file f SET delegate = 0
        WHERE f.delegate = a_session AND f.delegate <> 0 RETURNING f.ino
    )
    SELECT array_agg(g.ino) INTO v_inos FROM (
        SELECT ino FROM freed UNION SELECT ino FROM left_queue UNION SELECT ino FROM undelegated) g;
    IF v_inos IS NOT NULL THEN PERFORM wrkfs.wake_lock_waiters(v_inos); END IF;
END $$;

-- Deletes up to a_limit rows of files whose locks are not in use. A row that is deleted while a lock
-- is taken does no harm: it only serialises calls, and says whether sessions share the file.
CREATE FUNCTION wrkfs.tidy_locks(a_limit integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lock_file f WHERE f.delegate = 0 AND f.ino IN (
        SELECT o.ino FROM lock_file o WHERE o.delegate = 0
            AND coalesce(o.shared_at, '-infinity') < clock_timestamp() - interval '10 s'
            AND NOT EXISTS (SELECT 1 FROM file_lock l WHERE l.ino = o.ino)
            AND NOT EXISTS (SELECT 1 FROM lock_waiter w WHERE w.ino = o.ino)
        ORDER BY o.ino LIMIT a_limit FOR UPDATE SKIP LOCKED);
END $$;

-- Returns the locks that the rows show, for the command `wrkfs locks`: delegated ones are with their
-- session. waits: the request is not granted yet.
CREATE FUNCTION wrkfs.list_locks(a_limit integer) RETURNS TABLE (
    ino bigint, space integer, mode integer, first bigint, last bigint, pid integer,
    session bigint, waits boolean
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT g.ino, g.space, g.mode, g.first, g.last, g.pid, g.session_id, g.waits
    FROM (
        SELECT l.ino, l.space, l.mode, l.first, l.last, l.pid, l.session_id, false AS waits
        FROM file_lock l
        UNION ALL
        SELECT w.ino, w.space, w.mode, w.first, w.last, 0, w.session_id, true FROM lock_waiter w
        UNION ALL
        SELECT f.ino, NULL, NULL, NULL, NULL, NULL, f.delegate, false FROM lock_file f
        WHERE f.delegate <> 0
    ) g JOIN session s ON s.session_id = g.session_id
    ORDER BY g.ino, g.waits, g.first, g.session_id LIMIT a_limit;
END $$;
