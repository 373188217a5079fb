-- Leases: what a session may keep of what it was answered, and how others get it back.
--
-- A lease (row of `lease`) is a session's on a directory. It covers the directory's attributes and
-- entries, and the attributes and refs of the non-directories in it that have one link (inode.parent
-- names their directory); what has several links is covered by none.
--
--  * Taking: `take_lease` inserts the row and commits. What is read by a call that begins afterwards
--    and is *settled* may be kept.
--  * Settled means that no other transaction under way had locked or changed the inode's row when
--    the snapshot was taken. Who changes entries of a directory locks the directory's inode row.
--    The row's xmax is 0 then, or a transaction that the snapshot takes for ended: a lock that has
--    ended leaves its number there. So nothing may lock these rows FOR SHARE or in a subtransaction:
--    of several lockers xmax is another kind of number.
--  * Changing: a function first locks the rows of all inodes that it changes, and then looks for
--    leases of others (`recalls`). If it finds one it changes nothing, tells the holders, and
--    answers -2; the client calls again.
--  So no answer is kept that a change makes untrue: if the row of the lease was committed before the
--  change looked, the change waits for it. If not, the change held its locks when the reading call
--  began: either it had committed, and was read, or what was read is not settled.
--
--  * Giving back: the holder forgets what it keeps, then calls `give_back`. Leases are numbered in the
--    order in which the session asked for them, and `give_back` names the last one that is meant: so a
--    copy of it that the network delivers late ends no newer lease. A holder whose session has
--    expired is not waited for: its leases go, its tenure (session.tenure) ends, and its next heartbeat
--    tells it so. By then it has stopped serving what it keeps, 5 s after its last heartbeat.
--  * Who recalls a lease is not overtaken by its next taker: for a second nobody else takes one
--    there (`recall`).

-- Had a transaction ended when the snapshot of the calling query was taken? Of the numbers with
-- these 32 bits the one next to the snapshot is meant. The only function with rights of its owner:
-- snapshots are closed to volumes because they tell of others; this tells no more than
-- pg_xact_status, which asks of this moment and not of the snapshot.
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

-- Is a row with this xmax settled, in the snapshot of the calling query?
CREATE FUNCTION wrkfs.settled(a_xmax xid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT a_xmax = '0'::xid OR wrkfs.has_ended(a_xmax)
$$;

-- Takes a lease on a directory, before what it covers is read. False: not now. a_number: grows with
-- each call of the session, mutating ones included.
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
    -- A row may be left of a call whose answer came late, or never.
    INSERT INTO lease AS l (ino, session_id, taken_at, number)
    VALUES (a_ino, a_session, clock_timestamp(), a_number)
    ON CONFLICT (ino, session_id) DO UPDATE SET number = greatest(l.number, excluded.number);
    RETURN true;
END $$;

-- Ends leases of a session, as far as they were taken by calls up to number a_last.
CREATE FUNCTION wrkfs.give_back(a_session bigint, a_inos bigint[], a_last bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lease l
    WHERE l.session_id = a_session AND l.ino = ANY (a_inos) AND l.number <= a_last;
END $$;

-- Must a_session wait for leases of others on these directories before it changes them? The caller
-- has locked the rows of what it changes. True: the holders have been told, as of the commit.
CREATE FUNCTION wrkfs.recalls(a_session bigint, a_inos bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM lease l WHERE l.ino = ANY (a_inos) AND l.session_id <> a_session AND l.ino > 0;
    IF NOT FOUND THEN RETURN false; END IF;
    RETURN wrkfs.recall_leases(a_session, a_inos);
END $$;

-- The directory whose lease covers the attributes of an inode; 0: none.
CREATE FUNCTION wrkfs.home(a_ino bigint, a_mode integer, a_nlink integer, a_parent bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a_nlink = 0 THEN 0 WHEN a_mode >> 12 = 4 THEN a_ino ELSE a_parent END
$$;

-- `recalls` for a change of one inode: who may keep its attributes?
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

-- The part of `recalls` where somebody holds a lease. Sessions are locked last, and only if that
-- needs no waiting: so no order with heartbeats and fences has to be kept.
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
            AND s.expires_at < v_now FOR NO KEY UPDATE SKIP LOCKED
    ), ended AS (
        UPDATE session s SET tenure = s.tenure + 1 FROM expired e
        WHERE s.session_id = e.session_id AND s.expires_at < v_now RETURNING s.session_id
    )
    SELECT array_agg(e.session_id) INTO v_ended FROM ended e;
    -- Also those of sessions that are gone, which only a hostile row can be.
    DELETE FROM lease l WHERE l.session_id = ANY (v_ended)
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
