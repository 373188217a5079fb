-- Write delegations: a session decides changes of a directory by itself, and sends them later.
--
-- A delegation (row of `delegation`) belongs to a session and a directory on which no other session
-- has a lease. It covers what a lease covers. The session answers changes from its cache, keeps them
-- in a journal on its host, and sends them in order with `apply` (4_apply.sql). Until then the rows
-- here are old.
--
--  * Granting: `delegate` locks the directory's inode row, and then looks for leases and delegations
--    of other sessions, like a change (1_leases.sql). `make` grants a new directory with its lease,
--    and `apply` those that it inserts.
--  * Reading: each reading function looks for a delegation of another session in the query that reads
--    the rows, so with the same snapshot. If there is one, it returns -3 and the directory. Then the
--    client calls `recall_delegations` and reads again.
--  * Changing: each changing function calls `is_foreign` before it looks at rows. If a delegation is
--    granted later, the call began before all changes under it. And it finds the holder's lease when
--    it has its locks, because a delegated directory also has a lease.
--  * Giving back: the holder sends its journal, and the same call of `apply` ends the delegation.
--  * A crash of PostgreSQL keeps delegations and empties `lease`; `survey` then adds their leases.
--  * Fencing a holder ends its delegations. What it had answered and not sent is lost. Nobody waits for
--    a holder beyond its expiry, because `recall_delegations` fences an expired one.

-- Returns the session of this connection, as `register` and `survey` set it; 0: none.
CREATE FUNCTION wrkfs.me() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('wrkfs.session', true), ''), '0')::bigint
$$;

-- Returns true if a delegation of another session covers an inode with this mode and parent.
CREATE FUNCTION wrkfs.covers_elsewhere(a_ino bigint, a_mode integer, a_parent bigint)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM delegation d
    WHERE d.ino = CASE WHEN a_mode >> 12 = 4 THEN a_ino ELSE a_parent END
        AND d.session_id <> wrkfs.me();
    RETURN FOUND;
END $$;

-- Returns true if a delegation of another session covers one of these inodes, and notifies the
-- holders.
CREATE FUNCTION wrkfs.is_foreign(a_session bigint, a_inos bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM inode i
    JOIN delegation d ON d.ino = CASE WHEN i.mode >> 12 = 4 THEN i.ino ELSE i.parent END
    WHERE i.ino = ANY (a_inos) AND d.session_id <> a_session;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM wrkfs.notify_holders(a_session, a_inos);
    RETURN true;
END $$;

-- Asks the sessions with delegations that cover these inodes to give them back.
CREATE FUNCTION wrkfs.notify_holders(a_session bigint, a_inos bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(s.channel, string_agg(DISTINCT 'w' || d.ino, ','))
    FROM inode i
    JOIN delegation d ON d.ino = CASE WHEN i.mode >> 12 = 4 THEN i.ino ELSE i.parent END
    JOIN session s ON s.session_id = d.session_id AND s.channel IS NOT NULL
    WHERE i.ino = ANY (a_inos) AND d.session_id <> a_session
    GROUP BY s.channel;
END $$;

-- Asks for delegations of other sessions that cover these inodes. With a_fence it fences holders that
-- have expired, and deletes rows of missing sessions, which only a hostile row can have. A caller first
-- replays the journals of its host. Returns true if some remain: call again soon.
CREATE FUNCTION wrkfs.recall_delegations(
    a_session bigint, a_inos bigint[], a_fence boolean DEFAULT true
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT wrkfs.is_foreign(a_session, a_inos) THEN RETURN false; END IF;
    IF NOT a_fence THEN RETURN true; END IF;
    PERFORM wrkfs.fence_holders(a_session);
    RETURN wrkfs.is_foreign(a_session, a_inos);
END $$;

-- Fences every other session that has delegations and has expired. A session may do so only if its own
-- heartbeats have been regular for the whole lease time (session.alive_since). Otherwise the database
-- was away, and all holders first have the lease time for a heartbeat: their changes would be lost.
CREATE FUNCTION wrkfs.fence_holders(a_session bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_session bigint;
    v_now timestamptz := clock_timestamp();
    v_regular boolean;
BEGIN
    PERFORM 1 FROM session s WHERE s.session_id = a_session
        AND s.alive_since <= v_now - wrkfs.lease_time() AND s.expires_at > v_now;
    v_regular := FOUND;
    FOR v_session IN
        SELECT g.session_id FROM (SELECT DISTINCT d.session_id FROM delegation d) g
        LEFT JOIN session s ON s.session_id = g.session_id
        WHERE g.session_id <> a_session
            AND (s.session_id IS NULL OR s.fenced_at IS NOT NULL
                OR v_regular AND s.expires_at < v_now)
        ORDER BY g.session_id LIMIT 100
    LOOP
        IF wrkfs.fence(v_session, false) THEN
            DELETE FROM delegation d WHERE d.session_id = v_session;
        END IF;
    END LOOP;
END $$;

-- Grants a directory to a session that has a lease on it. Returns false if it is not available now.
-- Durable: an answer of the holder may rely on it.
CREATE FUNCTION wrkfs.delegate(a_session bigint, a_epoch bigint, a_ino bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF wrkfs.is_read_only(a_ino) THEN RETURN false; END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.epoch = a_epoch AND s.delegates
        AND s.channel IS NOT NULL AND s.fenced_at IS NULL AND s.expires_at > clock_timestamp()
    FOR KEY SHARE;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM recall c WHERE c.ino IN (a_ino, 0) AND c.session_id <> a_session
        AND c.until > clock_timestamp();
    IF FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM inode i WHERE i.ino = a_ino AND i.mode >> 12 = 4 AND i.nlink > 0
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM lease l WHERE l.ino = a_ino AND l.session_id = a_session;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM lease l WHERE l.ino = a_ino AND l.session_id <> a_session;
    IF FOUND THEN RETURN false; END IF;
    INSERT INTO delegation (ino, session_id) VALUES (a_ino, a_session) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM delegation d WHERE d.ino = a_ino AND d.session_id = a_session;
    RETURN FOUND;
END $$;

-- Returns the number of the last batch that `apply` has applied for a session whose process is dead, and
-- extends the session for the replay of its journal. NULL: it is fenced, or the number belongs to
-- another session, because the volume was restored from a backup.
CREATE FUNCTION wrkfs.claim(a_session bigint, a_epoch bigint, a_channel text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
BEGIN
    UPDATE session s SET expires_at = clock_timestamp() + wrkfs.lease_time(), suspected_at = NULL
    WHERE s.session_id = a_session AND s.epoch = a_epoch AND s.channel = a_channel
        AND s.fenced_at IS NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;
    SELECT o.op_seq INTO v_seq FROM op_result o
    WHERE o.session_id = a_session AND o.epoch = a_epoch AND o.slot = 0;
    RETURN v_seq;
END $$;

-- Reserves room for changes that a session decides by itself, so that they keep the quota exact: what
-- is reserved counts for every other call. Replaces the session's earlier reservation. Returns false,
-- and changes nothing, if the quota has no room for it.
CREATE FUNCTION wrkfs.reserve_room(
    a_session bigint, a_epoch bigint, a_bytes bigint, a_inodes bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_bytes bigint := 0;
    v_inodes bigint := 0;
BEGIN
    PERFORM 1 FROM op_result o
    WHERE o.session_id = a_session AND o.epoch = a_epoch AND o.slot = 0 FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    SELECT r.bytes, r.inodes INTO v_bytes, v_inodes FROM reservation r
    WHERE r.session_id = a_session;
    IF wrkfs.over_quota(a_bytes - coalesce(v_bytes, 0), a_inodes - coalesce(v_inodes, 0)) THEN
        RETURN false;
    END IF;
    PERFORM wrkfs.set_reservation(a_session, a_bytes, a_inodes);
    RETURN true;
END $$;

-- Sets what a session has reserved; nothing deletes its row.
CREATE FUNCTION wrkfs.set_reservation(a_session bigint, a_bytes bigint, a_inodes bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF a_bytes > 0 OR a_inodes > 0 THEN
        INSERT INTO reservation AS r (session_id, bytes, inodes)
        VALUES (a_session, greatest(a_bytes, 0), greatest(a_inodes, 0))
        ON CONFLICT (session_id) DO UPDATE SET bytes = excluded.bytes, inodes = excluded.inodes
        WHERE r.bytes <> excluded.bytes OR r.inodes <> excluded.inodes;
    ELSE
        DELETE FROM reservation r WHERE r.session_id = a_session;
    END IF;
END $$;
