-- Upkeep: trash, garbage collection, compaction. schema.sql describes the rows of `trash` and
-- `deleted`. Functions that only remove unreachable data need no session.

-- Returns true if this session may do the upkeep of the volume for the next a_for. It keeps the right
-- if it calls again in time.
CREATE FUNCTION wrkfs.claim_upkeep(a_session bigint, a_epoch bigint, a_for interval)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM 1 FROM session s
    WHERE s.session_id = a_session AND s.epoch = a_epoch AND s.fenced_at IS NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    -- A holder that has ended, or an impossible time, does not block other sessions.
    UPDATE upkeep u SET session_id = a_session, until = v_now + a_for
    WHERE u.session_id = a_session OR u.until < v_now OR u.until > v_now + interval '1 hour'
        OR NOT EXISTS (SELECT 1 FROM session s
                       WHERE s.session_id = u.session_id AND s.fenced_at IS NULL);
    RETURN FOUND;
END $$;

-- Returns the time before which deleted slices are unreachable: for reads of less than a_grace, and
-- for snapshots of live sessions as of their last heartbeats.
CREATE FUNCTION wrkfs.horizon(a_grace interval) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_first timestamptz;
BEGIN
    SELECT min(least(s.snapshot_at, s.heartbeat_at)) INTO v_first
    FROM session s WHERE s.fenced_at IS NULL;
    RETURN least(v_first, clock_timestamp()) - a_grace;
END $$;

-- Returns up to a_limit slices whose objects can be deleted. Rows of slices in use (of a commit that
-- its session took for failed) are deleted instead. The caller deletes the objects, then calls
-- `forget_slices`.
CREATE FUNCTION wrkfs.garbage(
    a_grace interval, a_limit integer, OUT slices bigint[], OUT sizes bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_horizon timestamptz := wrkfs.horizon(a_grace);
BEGIN
    WITH old AS (
        SELECT d.slice_id, d.size FROM deleted d WHERE d.deleted_at < v_horizon LIMIT a_limit
    ), used AS (
        SELECT o.slice_id FROM old o
        WHERE EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = o.slice_id AND NOT s.is_inline)
            OR EXISTS (SELECT 1 FROM inline n WHERE n.slice_id = o.slice_id)
    ), gone AS (
        DELETE FROM deleted d USING used u WHERE d.slice_id = u.slice_id
    )
    SELECT array_agg(o.slice_id), array_agg(o.size) INTO slices, sizes
    FROM old o WHERE NOT EXISTS (SELECT 1 FROM used u WHERE u.slice_id = o.slice_id);
END $$;

-- Ends `garbage`: the objects of these slices are deleted.
CREATE FUNCTION wrkfs.forget_slices(a_slices bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM deleted d WHERE d.slice_id = ANY (a_slices);
END $$;

-- Gives up slice ids of a session that, as far as it knows, were not committed. a_slots, a_seqs: its
-- failed calls, of which copies may exist. The function waits for a copy that is running, and later
-- copies are rejected. So an id that is not in use here will never be used.
CREATE FUNCTION wrkfs.give_up(
    a_session bigint, a_epoch bigint, a_slots integer[], a_seqs bigint[],
    a_slices bigint[], a_sizes bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM op_result o
    WHERE o.session_id = a_session AND o.slot = ANY (a_slots) AND o.epoch = a_epoch
    ORDER BY o.slot FOR NO KEY UPDATE;
    UPDATE op_result o SET op_seq = g.seq, ino = 0, flag = false
    FROM unnest(a_slots, a_seqs) AS g (slot, seq)
    WHERE o.session_id = a_session AND o.slot = g.slot AND o.epoch = a_epoch AND o.op_seq < g.seq;
    INSERT INTO deleted (slice_id, size)
    SELECT DISTINCT ON (g.id) g.id, g.size FROM unnest(a_slices, a_sizes) AS g (id, size)
    WHERE NOT EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = g.id AND NOT s.is_inline)
        AND NOT EXISTS (SELECT 1 FROM inline n WHERE n.slice_id = g.id)
    ON CONFLICT DO NOTHING;
END $$;

-- Deletes the ranges of a session that closes and has reported every id that it gave up. A fenced
-- session may have lost more ids than it knows.
CREATE FUNCTION wrkfs.drop_ranges(a_session bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM slice_range g WHERE g.session_id = a_session
        AND EXISTS (SELECT 1 FROM session s
                    WHERE s.session_id = a_session AND s.fenced_at IS NULL);
END $$;

-- Processes up to a_limit ranges of slice ids whose session has ended. After a grace period, unused
-- ids move to `deleted`, and the range is deleted. a_size: the maximum size of a slice. A call
-- processes 65,536 ids at most; the rest of the last range stays. Returns the numbers of ranges and
-- ids; 0 ranges: none remains.
CREATE FUNCTION wrkfs.adopt_orphans(
    a_grace interval, a_limit integer, a_size bigint, OUT ranges integer, OUT ids bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_range record;
    v_room bigint := 65536;
    v_taken bigint;
    v_count bigint;
BEGIN
    ranges := 0;
    ids := 0;
    UPDATE slice_range g SET ended_at = v_now
    WHERE g.ended_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM session s
                        WHERE s.session_id = g.session_id AND s.fenced_at IS NULL);
    FOR v_range IN
        SELECT g.first, g.count, g.session_id, g.ended_at FROM slice_range g
        WHERE g.ended_at <= v_now - a_grace ORDER BY g.first LIMIT a_limit FOR UPDATE
    LOOP
        EXIT WHEN v_room = 0;
        v_taken := least(v_range.count, v_room,
                         9223372036854775807 - greatest(v_range.first, 0));
        INSERT INTO deleted (slice_id, size, deleted_at)
        SELECT n, a_size, v_range.ended_at
        FROM generate_series(v_range.first, v_range.first + v_taken - 1) AS n
        WHERE NOT EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = n AND NOT s.is_inline)
            AND NOT EXISTS (SELECT 1 FROM inline i WHERE i.slice_id = n)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_room := v_room - v_taken;
        ranges := ranges + 1;
        ids := ids + v_count;
        DELETE FROM slice_range g WHERE g.first = v_range.first;
        IF v_room = 0 AND v_taken < v_range.count THEN
            INSERT INTO slice_range (first, count, session_id, ended_at)
            VALUES (v_range.first + v_taken, v_range.count - v_taken,
                    v_range.session_id, v_range.ended_at)
            ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
END $$;

-- Replaces the visible bytes in [a_pos, a_pos + a_length) of a chunk by one slice, which is a copy of
-- them. a_ref_slice ...: the refs that overlapped this range when it was copied. a_hidden: slices whose
-- refs in this chunk were then completely covered. flag: done. It is false if one of the refs has
-- changed since, and no newer ref covers it completely: then another copy is necessary. Bytes and
-- version of the file do not change.
CREATE FUNCTION wrkfs.compact(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_pos bigint, a_length bigint, a_slice bigint, a_checksums bytea, a_inline bytea,
    a_ref_slice bigint[], a_ref_pos bigint[], a_ref_off bigint[], a_ref_length bigint[],
    a_hidden bigint[]
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_chunk bigint := a_pos >> 26;
    v_end bigint := a_pos + a_length;
    v_top record;
    v_is_shared boolean;
    v_ids bigint[];
    v_sizes bigint[];
    v_inline boolean[];
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF a_inline IS NULL THEN
        -- The objects of an id that is garbage, or belonged to another session, may be deleted.
        PERFORM 1 FROM deleted d WHERE d.slice_id = a_slice;
        IF FOUND THEN r.errno := 22; RETURN r; END IF;
        PERFORM 1 FROM (
            SELECT g.session_id, g.count, a_slice - g.first AS number FROM slice_range g
            WHERE g.first <= a_slice ORDER BY g.first DESC LIMIT 1) g
        WHERE g.session_id = a_session AND g.number < g.count;
        IF NOT FOUND THEN r.errno := 22; RETURN r; END IF;
    END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    PERFORM 1 FROM inode i WHERE i.ino = a_ino AND i.mode >> 12 = 8 FOR NO KEY UPDATE;
    -- A session that cached the refs under a lease finds their objects only while garbage waits.
    IF FOUND AND wrkfs.recalls_of(a_session, a_ino) THEN r.errno := -2; RETURN r; END IF;
    SELECT i.borrowed > 0 OR EXISTS (
        SELECT 1 FROM slice o WHERE o.borrowed AND o.slice_id = ANY (a_ref_slice || a_hidden))
    INTO v_is_shared FROM inode i WHERE i.ino = a_ino;
    r.errno := 0;
    r.flag := false;
    -- False is an answer too: a crash of the database that undoes it must not look like a lost change.
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, 0, 0);
    PERFORM 1 FROM inode i WHERE i.ino = a_ino AND i.mode >> 12 = 8;
    -- A copy of shared bytes would count once more in the usage.
    IF NOT FOUND OR v_is_shared THEN RETURN r; END IF;
    -- The new ref takes the position of the newest replaced ref: above the remaining refs, and below
    -- later ones. Parts of a slice that was cut in two (4_ranges.sql) may be outside the stretch.
    SELECT s.ord, s.pos, s.length INTO v_top FROM slice s
    WHERE s.inode = a_ino AND s.chunk = v_chunk AND s.slice_id = ANY (a_ref_slice)
        AND s.pos < v_end AND s.pos + s.length > a_pos
    ORDER BY s.ord DESC LIMIT 1;
    IF NOT FOUND OR v_top.pos < a_pos OR v_top.pos + v_top.length > v_end THEN RETURN r; END IF;
    PERFORM 1 FROM unnest(a_ref_slice, a_ref_pos, a_ref_off, a_ref_length)
        AS g (slice_id, pos, off, length)
    WHERE NOT EXISTS (
            SELECT 1 FROM slice s WHERE s.inode = a_ino AND s.chunk = v_chunk
                AND s.slice_id = g.slice_id AND s.pos = g.pos AND s.off = g.off
                AND s.length = g.length)
        AND NOT EXISTS (
            SELECT 1 FROM slice s WHERE s.inode = a_ino AND s.chunk = v_chunk
                AND s.ord > v_top.ord AND s.pos <= g.pos
                AND s.pos + s.length >= g.pos + g.length);
    IF FOUND THEN RETURN r; END IF;

    IF a_inline IS NOT NULL THEN
        INSERT INTO inline (slice_id, data) VALUES (a_slice, a_inline);
    END IF;
    WITH gone AS (
        DELETE FROM slice s WHERE s.inode = a_ino AND s.chunk = v_chunk
            AND (s.slice_id = ANY (a_hidden) OR s.slice_id = ANY (a_ref_slice)
                 AND s.pos >= a_pos AND s.pos + s.length <= v_end)
        RETURNING s.slice_id, s.size, s.is_inline
    )
    SELECT array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
    INTO v_ids, v_sizes, v_inline FROM gone g;
    INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums, is_inline)
    VALUES (a_ino, v_chunk, v_top.ord, a_pos, a_slice, a_length, 0, a_length, a_checksums,
        a_inline IS NOT NULL);
    PERFORM wrkfs.drop_slices(v_ids, v_sizes, v_inline);
    r.flag := true;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, true, 0, 0);
    RETURN r;
END $$;

-- Returns up to a_limit files beyond inode a_after that have a chunk of a_refs refs or more, none of
-- them borrowed. It reads the whole index of refs, so upkeep does not call it in every round.
CREATE FUNCTION wrkfs.ragged(a_after bigint, a_refs integer, a_limit integer) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT g.inode FROM (
            SELECT s.inode FROM slice s WHERE s.inode > a_after
            GROUP BY s.inode, s.chunk HAVING count(*) >= a_refs AND NOT bool_or(s.borrowed)
            ORDER BY s.inode, s.chunk LIMIT a_limit) g
        ORDER BY g.inode);
END $$;

-- Frees up to a_limit entries of the trash, the oldest first, and returns their number: those removed
-- up to a_until (NULL: longer ago than volume.trash_seconds). An open file only loses its entry, and
-- its last close frees it. Names of `removed_link` are deleted when no inode is left to free.
CREATE FUNCTION wrkfs.purge_trash(a_until timestamptz, a_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := a_until;
    v_last timestamptz;
    v_inos bigint[];
    v_count bigint;
BEGIN
    IF v_until IS NULL THEN
        SELECT clock_timestamp() - make_interval(secs => least(v.trash_seconds, 1000000000))
        INTO v_until FROM volume v;
    END IF;
    SELECT array_agg(e.ino), max(e.deleted_at) INTO v_inos, v_last
    FROM (SELECT t.ino, t.deleted_at FROM trash t WHERE t.deleted_at <= v_until
          ORDER BY t.deleted_at, t.ino LIMIT a_limit) e;
    v_count := wrkfs.free_trash(v_inos, v_last);
    IF v_count > 0 THEN RETURN v_count; END IF;
    DELETE FROM removed_link l WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM removed_link o WHERE o.deleted_at <= v_until
        ORDER BY o.deleted_at, o.ino LIMIT a_limit));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Frees those of these inodes that were removed up to a_until; returns the number of deleted rows of
-- `trash`.
CREATE FUNCTION wrkfs.free_trash(a_inos bigint[], a_until timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_gone bigint[];
    v_free bigint[];
BEGIN
    IF a_inos IS NULL THEN RETURN 0; END IF;
    PERFORM wrkfs.lock_inodes(a_inos);
    -- An inode that was restored in the meantime has no row, or a newer one.
    WITH gone AS (
        DELETE FROM trash t WHERE t.deleted_at <= a_until AND t.ino = ANY (a_inos)
        RETURNING t.ino, t.parent
    )
    SELECT count(*), array_agg(i.ino),
        array_agg(i.ino) FILTER (
            WHERE NOT EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino))
    INTO v_count, v_gone, v_free
    FROM gone g LEFT JOIN inode i ON i.ino = g.ino AND i.nlink = 0 AND i.parent = g.parent;
    UPDATE inode i SET parent = 0 WHERE i.ino = ANY (v_gone);
    PERFORM wrkfs.free_inodes(array_remove(v_free, NULL));
    RETURN v_count;
END $$;

-- Returns the time up to which to purge the trash, so that it keeps at most 1/a_share of the quota and
-- a_rows rows. NULL: it is small enough.
CREATE FUNCTION wrkfs.trash_excess(a_share bigint, a_rows bigint) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_bytes bigint;
    v_rows bigint;
BEGIN
    SELECT coalesce(v.bytes_limit / a_share, 9223372036854775807),
        least(a_rows, coalesce(v.inodes_limit / a_share, a_rows))
    INTO v_bytes, v_rows FROM volume v;
    PERFORM 1 FROM trash t HAVING sum(t.bytes) > v_bytes OR count(*) > v_rows;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN (
        SELECT max(k.deleted_at) FROM (
            SELECT t.deleted_at, sum(t.bytes) OVER newer AS bytes, row_number() OVER newer AS rows
            FROM trash t WINDOW newer AS (ORDER BY t.deleted_at DESC, t.ino DESC)) k
        WHERE k.bytes > v_bytes OR k.rows > v_rows);
END $$;

-- Frees up to a_limit files and empty directories of the trash, and names of `removed_link`, that have
-- a_keep newer ones of the same name: a file that is replaced every second must not evict everything
-- else. Returns their number.
CREATE FUNCTION wrkfs.thin_trash(a_keep integer, a_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
    v_until timestamptz;
    v_links tid[];
    v_count bigint;
BEGIN
    SELECT array_agg(e.ino) FILTER (WHERE e.link IS NULL), max(e.deleted_at),
        array_agg(e.link) FILTER (WHERE e.link IS NOT NULL)
    INTO v_inos, v_until, v_links FROM (
        SELECT n.ino, n.deleted_at, n.link FROM (
            SELECT o.ino, o.deleted_at, o.link, row_number() OVER (
                PARTITION BY o.parent, o.name ORDER BY o.deleted_at DESC) AS number
            FROM (SELECT t.ino, t.parent, t.name, t.deleted_at, NULL::tid AS link FROM trash t
                  UNION ALL
                  SELECT l.ino, l.parent, l.name, l.deleted_at, l.ctid FROM removed_link l) o) n
        JOIN inode i ON i.ino = n.ino
        WHERE n.number > a_keep
            AND (i.mode >> 12 <> 4 OR NOT EXISTS (SELECT 1 FROM trash c WHERE c.parent = n.ino)
                AND NOT EXISTS (SELECT 1 FROM removed_link c WHERE c.parent = n.ino))
        LIMIT a_limit) e;
    DELETE FROM removed_link l WHERE l.ctid = ANY (v_links);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count + wrkfs.free_trash(v_inos, v_until);
END $$;

-- Deletes up to a_limit names of `removed_link`, the oldest first, while there are more than a_rows, or
-- more than 1/a_share of the inode quota. Returns their number. They keep no bytes and have a limit of
-- their own, so that programs that link and unlink for each file do not evict what users removed.
CREATE FUNCTION wrkfs.thin_links(a_share bigint, a_rows bigint, a_limit integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_surplus bigint;
    v_count bigint;
BEGIN
    SELECT (SELECT count(*) FROM removed_link)
        - least(a_rows, coalesce(v.inodes_limit / a_share, a_rows))
    INTO v_surplus FROM volume v;
    IF v_surplus <= 0 THEN RETURN 0; END IF;
    DELETE FROM removed_link l WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM removed_link o
        ORDER BY o.deleted_at, o.ino LIMIT least(v_surplus, a_limit)));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Returns up to a_limit entries of the trash and names of `removed_link` (linked) that were removed
-- after (a_at, a_ino, a_parent, a_name), in that order.
CREATE FUNCTION wrkfs.list_trash(
    a_at timestamptz, a_ino bigint, a_parent bigint, a_name bytea, a_limit integer,
    OUT ino bigint, OUT parent bigint, OUT name bytea, OUT deleted_at timestamptz,
    OUT mode integer, OUT uid bigint, OUT gid bigint, OUT size bigint, OUT mtime bigint,
    OUT nlink integer, OUT dir_mtime bigint, OUT linked boolean
) RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    (SELECT t.ino, t.parent, t.name, t.deleted_at, i.mode, i.uid, i.gid, i.size, i.mtime, i.nlink,
        t.dir_mtime, false
     FROM trash t JOIN inode i ON i.ino = t.ino
     WHERE (t.deleted_at, t.ino, t.parent, t.name) > (a_at, a_ino, a_parent, a_name)
     ORDER BY t.deleted_at, t.ino, t.parent, t.name LIMIT a_limit)
    UNION ALL
    (SELECT l.ino, l.parent, l.name, l.deleted_at, i.mode, i.uid, i.gid, i.size, i.mtime, i.nlink,
        l.dir_mtime, true
     FROM removed_link l JOIN inode i ON i.ino = l.ino
     WHERE (l.deleted_at, l.ino, l.parent, l.name) > (a_at, a_ino, a_parent, a_name)
     ORDER BY l.deleted_at, l.ino, l.parent, l.name LIMIT a_limit)
    ORDER BY 4, 1, 2, 3 LIMIT a_limit;
END $$;

-- Returns entries of the trash that come before this one, the newest first; columns as in `list_trash`.
CREATE FUNCTION wrkfs.list_trash_back(
    a_at timestamptz, a_ino bigint, a_parent bigint, a_name bytea, a_limit integer,
    OUT ino bigint, OUT parent bigint, OUT name bytea, OUT deleted_at timestamptz,
    OUT mode integer, OUT uid bigint, OUT gid bigint, OUT size bigint, OUT mtime bigint,
    OUT nlink integer, OUT dir_mtime bigint, OUT linked boolean
) RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    (SELECT t.ino, t.parent, t.name, t.deleted_at, i.mode, i.uid, i.gid, i.size, i.mtime, i.nlink,
        t.dir_mtime, false
     FROM trash t JOIN inode i ON i.ino = t.ino
     WHERE (t.deleted_at, t.ino, t.parent, t.name) < (a_at, a_ino, a_parent, a_name)
     ORDER BY t.deleted_at DESC, t.ino DESC, t.parent DESC, t.name DESC LIMIT a_limit)
    UNION ALL
    (SELECT l.ino, l.parent, l.name, l.deleted_at, i.mode, i.uid, i.gid, i.size, i.mtime, i.nlink,
        l.dir_mtime, true
     FROM removed_link l JOIN inode i ON i.ino = l.ino
     WHERE (l.deleted_at, l.ino, l.parent, l.name) < (a_at, a_ino, a_parent, a_name)
     ORDER BY l.deleted_at DESC, l.ino DESC, l.parent DESC, l.name DESC LIMIT a_limit)
    ORDER BY 4 DESC, 1 DESC, 2 DESC, 3 DESC LIMIT a_limit;
END $$;

-- Returns parent and name of a directory, current or last, and whether it is alive. NULL: unknown.
CREATE FUNCTION wrkfs.place(
    a_ino bigint, OUT parent bigint, OUT name bytea, OUT alive boolean
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT i.parent, i.nlink > 0 INTO parent, alive FROM inode i
    WHERE i.ino = a_ino AND i.mode >> 12 = 4;
    IF alive THEN
        SELECT d.name INTO name FROM dentry d WHERE d.parent = place.parent AND d.ino = a_ino
        LIMIT 1;
    ELSE
        SELECT t.name INTO name FROM trash t WHERE t.parent = place.parent AND t.ino = a_ino
        LIMIT 1;
    END IF;
END $$;

-- Gives an inode of the trash a name again; a directory is restored empty. With a_from and a_from_name
-- the call uses that row of `removed_link`: the inode gets a further name, or its first one again, and
-- then its row of `trash` becomes one of `removed_link`. The call never replaces anything.
CREATE FUNCTION wrkfs.restore(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_parent bigint, a_name bytea, a_cookie bigint, a_from bigint, a_from_name bytea
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_now bigint;
    v wrkfs.reply;
    v_is_dir boolean;
    v_bytes bigint := 0;
    v_inodes bigint := 0;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent, a_ino]) THEN r.errno := -2; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, a_ino]);
    PERFORM 1 FROM inode i WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    IF wrkfs.is_read_only(a_parent) THEN r.errno := 30; RETURN r; END IF;
    PERFORM 1 FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
    IF FOUND THEN r.errno := 17; RETURN r; END IF;
    SELECT 0, false, i.* INTO v FROM inode i WHERE i.ino = a_ino;
    r.errno := wrkfs.check_restore(v, a_from, a_from_name);
    IF r.errno <> 0 THEN RETURN r; END IF;
    v_is_dir := v.mode >> 12 = 4;
    PERFORM 1 FROM sustained s WHERE s.ino = a_ino;
    -- A directory with a holder is still being purged.
    IF FOUND AND v_is_dir THEN r.errno := 16; RETURN r; END IF;
    IF NOT FOUND AND v.nlink = 0 THEN
        v_bytes := CASE WHEN v.mode >> 12 = 8 THEN v.size - v.holes - v.borrowed ELSE 0 END;
        v_inodes := 1;
        IF wrkfs.over_quota(v_bytes, 1) THEN r.errno := 122; RETURN r; END IF;
    END IF;
    -- If an inode has a name, a lease on that name's directory may cover its attributes.
    IF wrkfs.recalls(a_session, ARRAY[a_parent]
        || CASE WHEN v_is_dir THEN ARRAY[a_ino] WHEN v.nlink > 0 THEN ARRAY[v.parent]
           ELSE '{}' END) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_now := wrkfs.now_ns();
    DELETE FROM removed_link l
    WHERE l.ino = a_ino AND l.parent = a_from AND l.name = a_from_name;
    IF v.nlink = 0 THEN
        WITH gone AS (
            DELETE FROM trash t WHERE t.parent = v.parent AND t.ino = a_ino
            RETURNING t.parent, t.name, t.deleted_at, t.dir_mtime
        )
        INSERT INTO removed_link (ino, parent, name, deleted_at, dir_mtime)
        SELECT a_ino, g.parent, g.name, g.deleted_at, g.dir_mtime FROM gone g
        WHERE a_from IS NOT NULL
        ON CONFLICT (ino, parent, name) DO UPDATE
        SET deleted_at = excluded.deleted_at, dir_mtime = excluded.dir_mtime;
    END IF;
    INSERT INTO dentry (parent, name, ino, cookie) VALUES (a_parent, a_name, a_ino, a_cookie);
    UPDATE inode i SET mtime = v_now, ctime = v_now, nlink = i.nlink + v_is_dir::integer
    WHERE i.ino = a_parent;
    UPDATE inode i SET ctime = v_now, nlink = i.nlink + 1 + v_is_dir::integer,
        parent = CASE WHEN i.nlink = 0 THEN a_parent ELSE 0 END
    WHERE i.ino = a_ino RETURNING 0, true, i.* INTO r;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, a_ino, true, v_bytes, v_inodes);
    RETURN r;
END $$;

-- Checks whether the locked inode a_inode can be restored, from the row of `removed_link` that a_from
-- and a_from_name identify, or from its row of `trash`. Returns 0, ENOENT or EMLINK.
CREATE FUNCTION wrkfs.check_restore(a_inode wrkfs.reply, a_from bigint, a_from_name bytea)
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF a_from IS NOT NULL THEN
        PERFORM 1 FROM removed_link l
        WHERE l.ino = a_inode.ino AND l.parent = a_from AND l.name = a_from_name;
        IF NOT FOUND OR a_inode.mode >> 12 = 4 THEN RETURN 2; END IF;
        IF a_inode.nlink >= 65000 THEN RETURN 31; END IF;
        IF a_inode.nlink > 0 THEN RETURN 0; END IF;
    END IF;
    PERFORM 1 FROM trash t
    WHERE t.parent = a_inode.parent AND t.ino = a_inode.ino AND a_inode.nlink = 0;
    RETURN CASE WHEN FOUND THEN 0 ELSE 2 END;
END $$;
