-- Sessions: registration, heartbeat, fencing, reclaiming. See SESSIONS in schema.sql for the rules.

-- Registers a session with a_slots slots for mutating calls, and returns its number. Durable: after a
-- crash no other session may get the number. a_channel: the channel for recalls of its leases; NULL:
-- it takes no leases. a_run: the run of the database that it knows; NULL: it has cached nothing yet,
-- and so has nothing to drop from an older run. a_process: the process of the session. a_delegates: it
-- takes write delegations. Slot 0 is for `apply`.
CREATE FUNCTION wrkfs.register(
    a_kind text, a_epoch bigint, a_slots integer, a_channel text, a_run timestamptz,
    a_process text, a_delegates boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_session bigint;
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    UPDATE counter c SET next = c.next + 1 WHERE c.kind = 'session'
    RETURNING c.next - 1 INTO v_session;
    INSERT INTO session
        (session_id, epoch, kind, channel, run, process, started_at, heartbeat_at, expires_at,
        delegates, alive_since)
    VALUES
        (v_session, a_epoch, a_kind, a_channel,
        coalesce(a_run, (SELECT l.taken_at FROM lease l WHERE l.ino = 0 AND l.session_id = 0)),
        a_process, v_now, v_now, v_now + wrkfs.lease_time(), a_delegates, v_now);
    INSERT INTO op_result (session_id, slot, epoch, op_seq, ino, flag, bytes, inodes)
    SELECT v_session, n, a_epoch, 0, 0, false, 0, 0 FROM generate_series(0, a_slots) n;
    PERFORM set_config('wrkfs.session', v_session::text, false);
    RETURN v_session;
END $$;

-- The first call of a session on every new connection. run is the current run of the database. The
-- unlogged table `lease` stores it, on inode 0, which no inode has. So a crash or a fail-over deletes
-- it, and a clean restart does not. If it differs from a_run, asynchronous changes may be undone. seqs
-- are the last calls applied through each of slots: a lower number than that of an answered call is a
-- lost change. The session's opens may be lost too, so its files (a_held) are sustained again. A
-- fenced session has no slots. cached: sessions may still rely on leases of another run for some
-- seconds; call again until it is false.
CREATE FUNCTION wrkfs.survey(
    a_session bigint, a_epoch bigint, a_run timestamptz, a_held bigint[],
    OUT run timestamptz, OUT slots integer[], OUT seqs bigint[], OUT cached boolean
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT l.taken_at INTO run FROM lease l WHERE l.ino = 0 AND l.session_id = 0;
    IF NOT FOUND THEN
        INSERT INTO lease (ino, session_id, taken_at) VALUES (0, 0, clock_timestamp())
        ON CONFLICT DO NOTHING;
        SELECT l.taken_at INTO run FROM lease l WHERE l.ino = 0 AND l.session_id = 0;
        -- Delegations survive a crash; a change of another session looks for their leases.
        INSERT INTO lease (ino, session_id, taken_at)
        SELECT d.ino, d.session_id, clock_timestamp() FROM delegation d WHERE d.ino > 0
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM set_config('wrkfs.session', a_session::text, false);
    SELECT array_agg(o.slot), array_agg(o.op_seq) INTO slots, seqs
    FROM op_result o WHERE o.session_id = a_session AND o.epoch = a_epoch;
    -- Leases of the run before are gone, but sessions may still rely on them. The clock does not tell
    -- the order of runs, because it may be set back.
    PERFORM 1 FROM session s WHERE s.session_id <> a_session AND s.channel IS NOT NULL
        AND s.run IS DISTINCT FROM survey.run AND s.expires_at > clock_timestamp();
    cached := FOUND;
    IF run = a_run OR slots IS NULL OR cardinality(a_held) = 0 THEN RETURN; END IF;
    -- A fence waits for this insertion, or this statement finds the session fenced.
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.epoch = a_epoch
        AND s.fenced_at IS NULL FOR SHARE;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM wrkfs.lock_inodes(a_held);
    INSERT INTO sustained (ino, session_id)
    SELECT i.ino, a_session FROM inode i WHERE i.ino = ANY (a_held) AND i.mode >> 12 = 8
        AND NOT wrkfs.is_gone(i.ino, i.nlink)
    ON CONFLICT DO NOTHING;
END $$;

-- Returns what the database holds for a session: open files, and whether trees wait for removal.
CREATE FUNCTION wrkfs.held(a_session bigint, OUT inos bigint[], OUT doomed boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT array_agg(s.ino) FILTER (WHERE NOT s.doomed), coalesce(bool_or(s.doomed), false)
    INTO inos, doomed FROM sustained s WHERE s.session_id = a_session;
END $$;

-- Keeps a session alive and clears a suspicion. Returns its tenure; NULL: it is fenced. a_snapshot: age
-- of the oldest snapshot that the session still reads; NULL: none.
CREATE FUNCTION wrkfs.heartbeat(
    a_session bigint, a_epoch bigint, a_snapshot interval, a_run timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_tenure bigint;
BEGIN
    UPDATE session s SET heartbeat_at = v_now, expires_at = v_now + wrkfs.lease_time(),
        suspected_at = NULL, snapshot_at = v_now - a_snapshot, run = a_run,
        alive_since = CASE WHEN s.expires_at > v_now THEN coalesce(s.alive_since, v_now)
            ELSE v_now END
    WHERE s.session_id = a_session AND s.epoch = a_epoch AND s.fenced_at IS NULL
    RETURNING s.tenure INTO v_tenure;
    RETURN v_tenure;
END $$;

-- Fences a session for good: after the return, no call of it changes anything. If the session has not
-- expired, it does nothing and returns false, unless a_force states that its process is dead. A
-- session that does not exist counts as fenced.
CREATE FUNCTION wrkfs.fence(a_session bigint, a_force boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_bytes bigint;
    v_inodes bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.fenced_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN true; END IF;
    PERFORM 1 FROM session s WHERE s.session_id = a_session
        AND (a_force OR s.expires_at < clock_timestamp());
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE session s SET fenced_at = clock_timestamp() WHERE s.session_id = a_session;
    DELETE FROM lease l WHERE l.session_id = a_session;
    DELETE FROM delegation d WHERE d.session_id = a_session;
    DELETE FROM reservation r WHERE r.session_id = a_session;
    DELETE FROM recall c WHERE c.session_id = a_session;
    -- Waits for calls in progress; later calls find no slot.
    WITH gone AS (DELETE FROM op_result o WHERE o.session_id = a_session RETURNING o.*)
    SELECT coalesce(sum(g.bytes), 0), coalesce(sum(g.inodes), 0) INTO v_bytes, v_inodes
    FROM gone g;
    UPDATE usage u SET bytes = u.bytes + v_bytes, inodes = u.inodes + v_inodes;
    -- After the calls in progress, because they may wait for the rows of files that have locks.
    PERFORM wrkfs.drop_locks(a_session);
    DELETE FROM session s WHERE s.session_id = a_session
        AND NOT EXISTS (SELECT 1 FROM sustained h WHERE h.session_id = a_session);
    RETURN true;
END $$;

-- Returns the sessions that have stated their process, except a_session; those with delegations only on
-- request, because a journal may wait for its replay.
CREATE FUNCTION wrkfs.processes(a_session bigint, a_delegating boolean DEFAULT true) RETURNS TABLE (session bigint, process text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT s.session_id, s.process FROM session s
        WHERE s.process IS NOT NULL AND s.fenced_at IS NULL AND s.session_id <> a_session
            AND (a_delegating OR NOT s.delegates)
        ORDER BY s.session_id DESC LIMIT 1000;
END $$;

-- Releases up to about a_limit inodes that session a_owner holds. flag: more remain. If none remains
-- and the session is fenced, its row is deleted.
CREATE FUNCTION wrkfs.reclaim(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_owner bigint, a_limit integer
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
    v_freed wrkfs.freed;
    v_inos bigint[];
    v_free bigint[];
BEGIN
    -- First inodes without entries, then trees; each call has its own rules.
    SELECT array_agg(e.ino) INTO v_inos
    FROM (SELECT s.ino FROM sustained s WHERE s.session_id = a_owner AND NOT s.doomed
          LIMIT a_limit) e;
    IF v_inos IS NULL THEN
        r := wrkfs.purge(a_session, a_epoch, a_slot, a_seq, a_owner, a_limit);
        IF r.errno = 0 AND NOT r.flag THEN
            DELETE FROM session s WHERE s.session_id = a_owner AND s.fenced_at IS NOT NULL;
        END IF;
        RETURN r;
    END IF;
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    PERFORM wrkfs.lock_inodes(v_inos);
    -- Other calls may have released some of them in the meantime, and booked it.
    WITH held AS (
        DELETE FROM sustained s
        WHERE s.session_id = a_owner AND s.ino = ANY (v_inos) AND NOT s.doomed
        RETURNING s.ino
    )
    SELECT array_agg(h.ino) INTO v_inos FROM held h;
    SELECT array_agg(i.ino) INTO v_free FROM inode i
    WHERE i.ino = ANY (v_inos) AND i.nlink = 0
        AND NOT EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino);
    v_freed := wrkfs.let_go(coalesce(v_free, '{}'));
    r.errno := 0;
    r.flag := true;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, true, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- Ends dead sessions: suspects silent ones, fences those that stay silent, and returns fenced ones
-- that `reclaim` must clean up (at most 100).
CREATE FUNCTION wrkfs.reap(a_silence interval, a_patience interval) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_session bigint;
BEGIN
    UPDATE session s SET suspected_at = v_now
    WHERE s.fenced_at IS NULL AND s.suspected_at IS NULL AND s.heartbeat_at < v_now - a_silence;
    FOR v_session IN
        SELECT s.session_id FROM session s
        WHERE s.fenced_at IS NULL AND s.suspected_at < v_now - a_patience
            AND s.heartbeat_at < v_now - a_silence
        ORDER BY s.session_id LIMIT 100 FOR NO KEY UPDATE
    LOOP
        PERFORM wrkfs.fence(v_session, true);
    END LOOP;
    PERFORM wrkfs.tidy_locks(1000);
    RETURN ARRAY(SELECT s.session_id FROM session s WHERE s.fenced_at IS NOT NULL
                 ORDER BY s.session_id LIMIT 100);
END $$;
