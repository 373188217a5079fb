-- Leases: which answers a session may cache, and how other sessions recall them.
--
-- A lease (row of `lease`) belongs to a session and a directory. It covers the directory's attributes
-- and entries. It also covers attributes and refs of the non-directories in it that have one link
-- (inode.parent is their directory). No lease covers an inode with several links.
--
--  * Taking: `take_lease` inserts the row and commits. The session may cache *settled* answers of
--    calls that begin afterwards.
--  * Settled means: when the snapshot was taken, no other running transaction had locked or changed
--    the inode's row. A change of entries locks the directory's inode row. The xmax of a settled row
--    is 0, or a transaction that had ended in the snapshot: a released lock leaves its number there.
--    So these rows must not be locked FOR SHARE or in a subtransaction, because several lockers
--    store another kind of number in xmax.
--  * Changing: a function first locks the rows of all inodes that it changes, and then looks for
--    leases of other sessions (`recalls`). If there is one, it changes nothing, notifies the holders
--    and returns -2. The client calls again.
--  So no cached answer becomes wrong. If the row of the lease was committed before the change looked
--  for it, the change waits for the lease. Otherwise the change held its locks when the reading call
--  began. Then the call either read the committed change, or its answer is not settled.
--
--  * Giving back: the holder drops its cache, then calls `give_back`. The session numbers its leases
--    in the order of its requests, and `give_back` passes the last number that it ends. So a late
--    copy of the call ends no newer lease. If the session of a holder has expired, nothing waits for
--    it: its leases are deleted, except those of delegated directories. Its tenure (session.tenure)
--    ends, and its next heartbeat reports that. By then it no longer uses its cache, because it stops
--    5 s after its last heartbeat.
--  * A session that recalls a lease has priority: for a second no other session takes a lease there
--    (`recall`).

-- Returns the lease time: a session expires when its last heartbeat is older. Until then, other
-- sessions wait for its leases. wrkfs/meta/interface/lease_times.py has the times that must fit it.
CREATE FUNCTION wrkfs.lease_time() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '6 s'
$$;

-- Returns true if a transaction had ended when the snapshot of the calling query was taken. The
-- argument has 32 bits; the function takes the number next to the snapshot. It is the only function
-- with the rights of its owner. Volumes must not read snapshots, because these reveal other volumes.
-- The function reveals no more than pg_xact_status, which cannot answer for a snapshot.
CREATE FUNCTION wrkfs.has_ended(a_xid xid) RETURNS boolean LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_next bigint := pg_snapshot_xmax(v_snapshot)::text::bigint;
    v_ahead bigint := (a_xid::text::bigint - v_next) & 4294967295;
BEGIN
    IF v_ahead >= 2147483648 THEN v_ahead := v_ahead - 4294967296; END IF;
    RETURN v_next + v_ahead > 0
        AND pg_visible_in_snapshot((v_next + v_ahead)::text::xid8, v_snapshot);
END $$;

-- Returns true if a row with this xmax is settled in the snapshot of the calling query.
CREATE FUNCTION wrkfs.settled(a_xmax xid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT a_xmax = '0'::xid OR wrkfs.has_ended(a_xmax)
$$;

-- Takes a lease on a directory. The session calls it before it reads what it will cache. Returns
-- false if the lease is not available now. a_number grows with each call of the session.
CREATE FUNCTION wrkfs.take_lease(
    a_session bigint, a_epoch bigint, a_ino bigint, a_number bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.epoch = a_epoch
        AND s.channel IS NOT NULL AND s.fenced_at IS NULL AND s.expires_at > clock_timestamp();
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM recall c WHERE c.ino = a_ino AND c.session_id <> a_session
        AND c.until > clock_timestamp();
    IF FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM inode i WHERE i.ino = a_ino AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN RETURN false; END IF;
    -- A call whose answer was late or lost may have left a row.
    INSERT INTO lease AS l (ino, session_id, taken_at, number)
    VALUES (a_ino, a_session, clock_timestamp(), a_number)
    ON CONFLICT (ino, session_id) DO UPDATE SET number = greatest(l.number, excluded.number);
    RETURN true;
END $$;

-- Ends leases of a session that calls up to number a_last took.
CREATE FUNCTION wrkfs.give_back(a_session bigint, a_inos bigint[], a_last bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lease l
    WHERE l.session_id = a_session AND l.ino = ANY (a_inos) AND l.number <= a_last;
END $$;

-- Returns true if a_session must wait for leases of other sessions on these directories. The caller
-- has locked the rows that it changes. The holders are notified when the transaction commits.
CREATE FUNCTION wrkfs.recalls(a_session bigint, a_inos bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM lease l WHERE l.ino = ANY (a_inos) AND l.session_id <> a_session AND l.ino > 0;
    IF NOT FOUND THEN RETURN false; END IF;
    RETURN wrkfs.recall_leases(a_session, a_inos);
END $$;

-- Returns the directory whose lease covers the attributes of an inode; 0: none.
CREATE FUNCTION wrkfs.home(a_ino bigint, a_mode integer, a_nlink integer, a_parent bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a_nlink = 0 THEN 0 WHEN a_mode >> 12 = 4 THEN a_ino ELSE a_parent END
$$;

-- Does what `recalls` does for a change of one inode.
CREATE FUNCTION wrkfs.recalls_of(a_session bigint, a_ino bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_home bigint;
BEGIN
    SELECT wrkfs.home(i.ino, i.mode, i.nlink, i.parent) INTO v_home
    FROM inode i WHERE i.ino = a_ino;
    IF NOT FOUND OR v_home = 0 THEN RETURN false; END IF;
    RETURN wrkfs.recalls(a_session, ARRAY[v_home]);
END $$;

-- The part of `recalls` for directories with leases. It locks sessions last, and skips locked ones.
-- So it needs no lock order with heartbeats and fences.
CREATE FUNCTION wrkfs.recall_leases(a_session bigint, a_inos bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_holders bigint[];
    v_ended bigint[];
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(DISTINCT l.session_id) INTO v_holders FROM lease l
    WHERE l.ino = ANY (a_inos) AND l.session_id <> a_session AND l.ino > 0;
    WITH expired AS (
        SELECT s.session_id FROM session s WHERE s.session_id = ANY (v_holders)
            AND s.expires_at < v_now
            -- `fence_holders` ends a session with delegations.
            AND NOT EXISTS (SELECT 1 FROM delegation d
                WHERE d.ino = ANY (a_inos) AND d.session_id = s.session_id)
        FOR NO KEY UPDATE SKIP LOCKED
    ), ended AS (
        UPDATE session s SET tenure = s.tenure + 1 FROM expired e
        WHERE s.session_id = e.session_id AND s.expires_at < v_now RETURNING s.session_id
    )
    SELECT array_agg(e.session_id) INTO v_ended FROM ended e;
    -- Includes leases of missing sessions, which only a hostile row can have. The leases of delegated
    -- directories stay: a change that looked for delegations earlier must still find the holder.
    DELETE FROM lease l WHERE l.session_id = ANY (v_ended)
            AND NOT EXISTS (SELECT 1 FROM delegation d
                WHERE d.ino = l.ino AND d.session_id = l.session_id)
        OR l.ino = ANY (a_inos) AND l.ino > 0
            AND NOT EXISTS (SELECT 1 FROM session s WHERE s.session_id = l.session_id);
    PERFORM 1 FROM lease l WHERE l.ino = ANY (a_inos) AND l.session_id <> a_session AND l.ino > 0;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM recall c WHERE c.until < v_now;
    INSERT INTO recall AS c (ino, session_id, until)
    SELECT DISTINCT g.ino, a_session, v_now + interval '1 s' FROM unnest(a_inos) AS g (ino)
    WHERE g.ino > 0 ORDER BY g.ino
    ON CONFLICT (ino, session_id) DO UPDATE SET until = excluded.until;
    PERFORM pg_notify(s.channel, array_to_string(ARRAY(
        SELECT l.ino FROM lease l
        WHERE l.session_id = s.session_id AND l.ino = ANY (a_inos) LIMIT 100), ','))
    FROM session s WHERE s.session_id <> a_session AND s.channel IS NOT NULL
        AND s.session_id IN (SELECT l.session_id FROM lease l WHERE l.ino = ANY (a_inos));
    RETURN true;
END $$;
