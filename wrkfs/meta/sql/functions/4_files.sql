-- Regular files: open handles, maps, commits, sizes.

-- Returns a file's attributes and refs. STABLE: both statements use the snapshot of the calling query.
CREATE FUNCTION wrkfs.file_map(a_ino bigint) RETURNS wrkfs.map_reply
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.map_reply;
BEGIN
    SELECT 0, false, i.* INTO r FROM inode i WHERE i.ino = a_ino;
    IF wrkfs.covers_elsewhere(r.ino, r.mode, r.parent) THEN
        r := NULL;
        r.errno := -3;
        r.ino := a_ino;
        RETURN r;
    END IF;
    IF r.ino IS NULL OR wrkfs.is_gone(a_ino, r.nlink) THEN
        r := NULL;
        r.errno := 2;
        RETURN r;
    END IF;
    IF r.size > 0 THEN
        SELECT array_agg(f.pos), array_agg(f.slice_id), array_agg(f.size), array_agg(f.off),
            array_agg(f.length), array_agg(f.checksums), array_agg(f.data)
        INTO r.ref_pos, r.ref_slice, r.ref_size, r.ref_off, r.ref_length, r.ref_checksums,
            r.ref_inline
        FROM (SELECT s.pos, s.slice_id, s.size, s.off, s.length, s.checksums, n.data
              FROM slice s LEFT JOIN inline n ON s.is_inline AND n.slice_id = s.slice_id
              WHERE s.inode = a_ino ORDER BY s.ord) f;
    END IF;
    RETURN r;
END $$;

-- Sustains a regular file for a session. Returns 0, ENOENT, EISDIR or EINVAL.
CREATE FUNCTION wrkfs.sustain(a_session bigint, a_ino bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_mode integer;
    v_nlink integer;
BEGIN
    SELECT i.mode, i.nlink INTO v_mode, v_nlink FROM inode i WHERE i.ino = a_ino
    FOR NO KEY UPDATE;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, v_nlink) THEN RETURN 2; END IF;
    IF v_mode >> 12 <> 8 THEN RETURN CASE WHEN v_mode >> 12 = 4 THEN 21 ELSE 22 END; END IF;
    INSERT INTO sustained (ino, session_id) VALUES (a_ino, a_session) ON CONFLICT DO NOTHING;
    RETURN 0;
END $$;

-- Sustains a locked regular file that was moved to the trash just now. Returns the bytes of the file,
-- which count in the usage again (I10), or NULL.
CREATE FUNCTION wrkfs.take_up(a_session bigint, a_ino bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_size bigint;
BEGIN
    IF NOT wrkfs.is_just_gone(a_ino) THEN RETURN NULL; END IF;
    UPDATE trash t SET bytes = 0 FROM inode i
    WHERE i.ino = a_ino AND t.parent = i.parent AND t.ino = i.ino
    RETURNING i.size - i.holes - i.borrowed INTO v_size;
    IF v_size IS NOT NULL THEN
        INSERT INTO sustained (ino, session_id) VALUES (a_ino, a_session);
    END IF;
    RETURN v_size;
END $$;

-- Opens a file: sustains it, truncates it on request, and returns its map.
CREATE FUNCTION wrkfs.open(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ino bigint,
    a_truncate boolean
) RETURNS wrkfs.map_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.map_reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_growth bigint := 0;
    v_inodes integer := 0;
    v_now bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat_map(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    IF a_truncate AND wrkfs.is_read_only(a_ino) THEN r.errno := 30; RETURN r; END IF;
    r.errno := wrkfs.sustain(a_session, a_ino);
    IF r.errno = 2 THEN
        v_growth := wrkfs.take_up(a_session, a_ino);
        IF v_growth IS NOT NULL THEN r.errno := 0; v_inodes := 1; END IF;
    END IF;
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF a_truncate THEN
        -- The file may stay sustained, because the client calls again.
        IF wrkfs.recalls_of(a_session, a_ino) THEN r.errno := -2; RETURN r; END IF;
        v_growth := v_growth + wrkfs.resize(a_ino, 0);
        -- Unlike truncate(2), O_TRUNC changes the times even if there is nothing to cut.
        v_now := wrkfs.now_ns();
        UPDATE inode i SET mtime = v_now, ctime = v_now WHERE i.ino = a_ino;
    END IF;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, a_ino, false, v_growth, v_inodes);
    RETURN wrkfs.file_map(a_ino);
END $$;

-- Opens many files, as `open` does, without truncation. Skips files that are gone or not regular.
CREATE FUNCTION wrkfs.sustain_all(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_inos bigint[]
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_ino bigint;
    v_taken bigint;
    v_bytes bigint := 0;
    v_inodes bigint := 0;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    PERFORM wrkfs.lock_inodes(a_inos);
    FOREACH v_ino IN ARRAY a_inos LOOP
        IF wrkfs.sustain(a_session, v_ino) = 2 THEN
            v_taken := wrkfs.take_up(a_session, v_ino);
            IF v_taken IS NOT NULL THEN
                v_bytes := v_bytes + v_taken;
                v_inodes := v_inodes + 1;
            END IF;
        END IF;
    END LOOP;
    r.errno := 0;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, v_bytes, v_inodes);
    RETURN r;
END $$;

-- Releases a session's files; frees those that have no name and no other holder.
CREATE FUNCTION wrkfs.release(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_inos bigint[]
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_freed wrkfs.freed := (0, 0);
    v_free bigint[];
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    -- The locks keep an unlink from searching for holders during this call.
    PERFORM wrkfs.lock_inodes(a_inos);
    -- A session without a hold releases nothing: the file may be booked as freed already.
    WITH held AS (
        DELETE FROM sustained s
        WHERE s.ino = ANY (a_inos) AND s.session_id = a_session AND NOT s.doomed
        RETURNING s.ino
    )
    SELECT array_agg(h.ino) INTO v_free FROM held h;
    SELECT array_agg(i.ino) INTO v_free FROM inode i
    WHERE i.ino = ANY (v_free) AND i.nlink = 0
        AND NOT EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino);
    IF v_free IS NOT NULL THEN v_freed := wrkfs.let_go(v_free); END IF;
    r.errno := 0;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- Creates a regular file without a name, sustained by the session.
CREATE FUNCTION wrkfs.create_unlinked(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_mode integer, a_uid bigint, a_gid bigint
) RETURNS wrkfs.map_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.map_reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_now bigint := wrkfs.now_ns();
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat_map(v_state, a_session, a_slot); END IF;
    IF wrkfs.over_quota(0, 1) THEN r.errno := 122; RETURN r; END IF;
    INSERT INTO inode AS i
    VALUES (a_ino, a_mode, 0, a_uid, a_gid, 0, 0, v_now, v_now, v_now, 0, 0)
    RETURNING 0, true, i.* INTO r;
    INSERT INTO sustained (ino, session_id) VALUES (a_ino, a_session);
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, a_ino, true, 0, 1);
    RETURN r;
END $$;

-- Returns the number of bytes in [a_start, a_end) of a file that refs cover.
CREATE FUNCTION wrkfs.covered(a_ino bigint, a_start bigint, a_end bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_bytes bigint;
BEGIN
    SELECT coalesce(sum(upper(c.part) - lower(c.part)), 0) INTO v_bytes FROM (
        SELECT unnest(range_agg(
            int8range(greatest(s.pos, a_start), least(s.pos + s.length, a_end)))) AS part
        FROM slice s
        WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
            AND s.pos < a_end AND s.pos + s.length > a_start
    ) c;
    RETURN v_bytes;
END $$;

-- Sets the size of a locked regular file. mtime and ctime change, unless the size stays the same and
-- the file has no bytes (as in tmpfs). Returns the growth in bytes. Cut bytes never reappear: refs
-- beyond the end are deleted, and the ref across the end is clipped.
CREATE FUNCTION wrkfs.resize(a_ino bigint, a_size bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := wrkfs.now_ns();
    v_old bigint;
    v_held bigint;
    v_holes bigint;
    v_borrowed bigint;
    v_ids bigint[];
    v_sizes bigint[];
    v_inline boolean[];
BEGIN
    SELECT i.size, i.holes, i.size - i.holes, i.borrowed INTO v_old, v_holes, v_held, v_borrowed
    FROM inode i WHERE i.ino = a_ino;
    v_holes := CASE WHEN a_size > v_old THEN v_holes + (a_size - v_old)
        WHEN a_size = 0 OR v_holes = 0 OR a_size = v_old THEN v_holes * (a_size > 0)::integer
        ELSE v_holes - (v_old - a_size - wrkfs.covered(a_ino, a_size, v_old)) END;
    IF a_size = v_old THEN
        UPDATE inode i SET mtime = v_now, ctime = v_now WHERE i.ino = a_ino AND v_held > 0;
        RETURN 0;
    END IF;
    v_held := v_held - v_borrowed;
    IF v_borrowed > 0 THEN v_borrowed := v_borrowed - wrkfs.borrowed(a_ino, a_size, v_old); END IF;
    UPDATE inode i SET size = a_size, mtime = v_now, ctime = v_now, holes = v_holes,
        version = i.version + 1, borrowed = v_borrowed
    WHERE i.ino = a_ino;
    IF a_size < v_old THEN
        WITH gone AS (
            DELETE FROM slice s
            WHERE s.inode = a_ino AND s.chunk >= a_size >> 26 AND s.pos >= a_size
            RETURNING s.slice_id, s.size, s.is_inline
        )
        SELECT array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
        INTO v_ids, v_sizes, v_inline FROM gone g;
        IF v_ids IS NOT NULL THEN
            PERFORM wrkfs.drop_slices(v_ids, v_sizes, v_inline);
        END IF;
        UPDATE slice s SET length = a_size - s.pos
        WHERE s.inode = a_ino AND s.chunk = a_size >> 26 AND s.pos + s.length > a_size;
    END IF;
    RETURN a_size - v_holes - v_borrowed - v_held;
END $$;

-- Reserves a range of slice ids (a_kind 'slice') or of numbers for inodes and cookies ('id'). Returns
-- the first number of the range, or -1 (fenced). Durable, because a range that is given twice would
-- corrupt data. Not repeatable: a range that is lost with a connection is only wasted.
CREATE FUNCTION wrkfs.reserve(a_session bigint, a_epoch bigint, a_kind text, a_count bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM 1 FROM session s
    WHERE s.session_id = a_session AND s.epoch = a_epoch AND s.fenced_at IS NULL;
    IF NOT FOUND THEN RETURN -1; END IF;
    UPDATE counter c SET next = c.next + a_count WHERE c.kind = a_kind
    RETURNING c.next - a_count INTO v_first;
    IF a_kind = 'slice' THEN
        INSERT INTO slice_range (first, count, session_id) VALUES (v_first, a_count, a_session);
    END IF;
    RETURN v_first;
END $$;

-- Makes extents visible, in order. The arrays have one element per extent. a_inline is NULL for
-- objects, which must not be garbage (EINVAL), because they may be deleted. a_append: offsets count
-- from the current end of the file. a_durable: the commit survives a crash of the database. A call
-- without extents changes nothing; with a_durable it makes everything before it durable. (It writes
-- the slot's row, so that there is a commit to flush.)
CREATE FUNCTION wrkfs.commit(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ino bigint,
    a_pos bigint[], a_slice bigint[], a_length bigint[], a_checksums bytea[], a_inline bytea[],
    a_append boolean, a_durable boolean, a_mtime bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    f wrkfs.reply;          -- the file before the commit
    v_setting text;
    v_state integer;
    v_version bigint;
    v_base bigint;
    v_size bigint;
    v_end bigint;
    v_holes bigint;
    v_borrowed bigint;
    v_growth bigint;
    v_now bigint;
BEGIN
    IF a_durable THEN v_setting := set_config('synchronous_commit', 'on', true); END IF;
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    SELECT 0, false, i.* INTO f FROM inode i WHERE i.ino = a_ino FOR NO KEY UPDATE;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, f.nlink) THEN r.errno := 116; RETURN r; END IF;
    IF f.mode >> 12 <> 8 THEN
        r.errno := CASE WHEN f.mode >> 12 = 4 THEN 21 ELSE 22 END;
        RETURN r;
    END IF;
    IF wrkfs.is_read_only(a_ino) AND cardinality(a_pos) > 0 THEN r.errno := 30; RETURN r; END IF;
    IF cardinality(a_pos) = 0 THEN
        f.errno := wrkfs.op_end(a_session, a_slot, a_seq, a_ino, false, 0, 0);
        RETURN f;
    END IF;
    v_base := CASE WHEN a_append THEN f.size ELSE 0 END;
    IF cardinality(a_pos) = 1 AND a_inline[1] IS NOT NULL AND a_length[1] > 0
        AND a_pos[1] <= 4611686018427387904 - a_length[1] - v_base
        AND (v_base + a_pos[1]) >> 26 = (v_base + a_pos[1] + a_length[1] - 1) >> 26 THEN
        RETURN wrkfs.commit_page(a_session, a_slot, a_seq, f, v_base + a_pos[1], a_slice[1],
            a_length[1], a_checksums[1], a_inline[1], a_mtime);
    END IF;
    v_end := f.size;
    v_growth := 0;
    FOR k IN 1..cardinality(a_pos) LOOP
        IF a_pos[k] > 9223372036854775807 - a_length[k] - v_base THEN
            r.errno := 27;
            RETURN r;
        END IF;
        IF a_inline[k] IS NULL THEN
            PERFORM 1 FROM deleted d WHERE d.slice_id = a_slice[k];
            IF FOUND THEN r.errno := 22; RETURN r; END IF;
        END IF;
        v_end := greatest(v_end, v_base + a_pos[k] + a_length[k]);
        v_growth := v_growth + a_length[k];
    END LOOP;
    -- The sum of lengths is an upper bound of the growth, and needs no query.
    IF wrkfs.over_quota(v_growth, 0)
        AND wrkfs.over_quota(wrkfs.growth(a_ino, v_base, a_pos, a_length), 0) THEN
        r.errno := 122;
        RETURN r;
    END IF;
    IF wrkfs.recalls(a_session, ARRAY[wrkfs.home(f.ino, f.mode, f.nlink, f.parent)]) THEN
        r.errno := -2;
        RETURN r;
    END IF;

    v_size := f.size;
    v_holes := f.holes;
    v_borrowed := f.borrowed;
    v_version := f.version;
    FOR k IN 1..cardinality(a_pos) LOOP
        v_holes := wrkfs.holes_after(a_ino, v_size, v_holes, v_base + a_pos[k], a_length[k]);
        IF v_borrowed > 0 THEN
            v_borrowed := v_borrowed - wrkfs.borrowed(
                a_ino, v_base + a_pos[k], v_base + a_pos[k] + a_length[k]);
        END IF;
        v_version := wrkfs.put_extent(a_ino, v_size, v_version, v_base + a_pos[k], a_slice[k],
            a_length[k], a_checksums[k], a_inline[k]);
        v_size := greatest(v_size, v_base + a_pos[k] + a_length[k]);
    END LOOP;
    v_now := wrkfs.now_ns();
    UPDATE inode i SET size = v_end, mtime = coalesce(a_mtime, v_now), ctime = v_now,
        version = v_version, holes = v_holes, borrowed = v_borrowed
    WHERE i.ino = a_ino RETURNING 0, false, i.* INTO r;
    v_growth := v_end - v_holes - v_borrowed - (f.size - f.holes - f.borrowed);
    r.errno := wrkfs.op_end(a_session, a_slot, a_seq, a_ino, false, v_growth, 0);
    RETURN r;
END $$;

-- Start of an inline slice in its file, its size and bytes.
CREATE TYPE wrkfs.inline_slice AS (start bigint, size bigint, data bytea);

-- The rest of `commit` for one extent of inline bytes within a chunk, the usual call. f is the locked
-- file. The growth is known before anything changes, so one statement makes the checks and stores the
-- answer. The last statement writes three rows of three tables, in any order. For an empty file this
-- makes four statements with op_begin instead of eleven: 45 us of the backend's 430 a commit.
CREATE FUNCTION wrkfs.commit_page(
    a_session bigint, a_slot integer, a_seq bigint, f wrkfs.reply, a_pos bigint, a_slice bigint,
    a_length bigint, a_checksums bytea, a_inline bytea, a_mtime bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_now bigint := wrkfs.now_ns();
    v_end bigint := a_pos + a_length;
    v_size bigint := greatest(f.size, v_end);
    v_holes bigint := wrkfs.holes_after(f.ino, f.size, f.holes, a_pos, a_length);
    v_borrowed bigint := f.borrowed;
    v_slice wrkfs.inline_slice := (a_pos, a_length, a_inline);
BEGIN
    IF v_borrowed > 0 THEN v_borrowed := v_borrowed - wrkfs.borrowed(f.ino, a_pos, v_end); END IF;
    r.errno := wrkfs.op_pass(a_session, a_slot, a_seq, f.ino, false,
        v_size - v_holes - v_borrowed - (f.size - f.holes - f.borrowed), 0, wrkfs.home(f.ino, f.mode, f.nlink, f.parent));
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF a_pos <= f.size AND f.size > 0 THEN
        IF a_pos & 67108863 <> 0 THEN
            v_slice := wrkfs.join_inline(f.ino, a_pos, a_length, a_inline);
        END IF;
        IF v_slice.start < f.size THEN
            PERFORM wrkfs.drop_covered(f.ino, v_slice.start, v_end - v_slice.start, a_slice);
        END IF;
    END IF;
    WITH put AS (
        INSERT INTO inline (slice_id, data) VALUES (a_slice, v_slice.data)
    ), ref AS (
        INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums,
            is_inline)
        VALUES (f.ino, v_slice.start >> 26, f.version + 1, v_slice.start, a_slice, v_slice.size, 0,
            v_end - v_slice.start, a_checksums, true)
    )
    UPDATE inode i SET size = v_size, mtime = coalesce(a_mtime, v_now), ctime = v_now,
        version = f.version + 1, holes = v_holes, borrowed = v_borrowed
    WHERE i.ino = f.ino RETURNING 0, false, i.* INTO r;
    RETURN r;
END $$;

-- Returns the number of bytes that extents add to the usage of a file: those that none of its own refs
-- covers yet (1_sharing.sql).
CREATE FUNCTION wrkfs.growth(a_ino bigint, a_base bigint, a_pos bigint[], a_length bigint[])
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_bytes bigint;
BEGIN
    SELECT sum(upper(n.part) - lower(n.part) - wrkfs.owned(a_ino, lower(n.part), upper(n.part)))
    INTO v_bytes FROM (
        SELECT unnest(range_agg(int8range(a_base + e.pos, a_base + e.pos + e.length))) AS part
        FROM unnest(a_pos, a_length) AS e (pos, length)
    ) n;
    RETURN v_bytes;
END $$;

-- Returns the number of bytes in holes of a file of a_size bytes after an extent is added; before, it
-- is a_holes. For a file without holes, the usual case, it does not read refs.
CREATE FUNCTION wrkfs.holes_after(
    a_ino bigint, a_size bigint, a_holes bigint, a_pos bigint, a_length bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_end bigint := least(a_pos + a_length, a_size);
BEGIN
    IF a_pos >= a_size THEN RETURN a_holes + a_pos - a_size; END IF;
    IF a_holes = 0 THEN RETURN 0; END IF;
    RETURN a_holes - (v_end - a_pos - wrkfs.covered(a_ino, a_pos, v_end));
END $$;

-- Makes everything committed before it durable. It writes the slot's row, so that there is a commit
-- to flush.
CREATE FUNCTION wrkfs.sync(a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint)
RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    r.errno := 0;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, 0, 0);
    RETURN r;
END $$;

-- Returns the slice for an extent of inline bytes within a chunk. Behind the last ref of its chunk,
-- if both are inline and small and the last one is not borrowed, it is one slice with both.
CREATE FUNCTION wrkfs.join_inline(
    a_ino bigint, a_pos bigint, a_length bigint, a_inline bytea
) RETURNS wrkfs.inline_slice LANGUAGE plpgsql AS $$
DECLARE
    v_last record;
    v_data bytea;
BEGIN
    SELECT s.pos, s.off, s.length, s.slice_id, s.is_inline AND NOT s.borrowed AS is_inline
    INTO v_last FROM slice s
    WHERE s.inode = a_ino AND s.chunk = a_pos >> 26 ORDER BY s.ord DESC LIMIT 1;
    IF NOT FOUND OR NOT v_last.is_inline OR v_last.pos + v_last.length <> a_pos
        OR v_last.length + a_length > 65536 THEN
        RETURN (a_pos, a_length, a_inline);
    END IF;
    SELECT substring(n.data FROM v_last.off::integer + 1 FOR v_last.length::integer)
        || a_inline INTO STRICT v_data
    FROM inline n WHERE n.slice_id = v_last.slice_id;
    RETURN (v_last.pos, octet_length(v_data)::bigint, v_data);
END $$;

-- Adds one extent on top of a locked file of a_size bytes, cut at chunk boundaries. Each ref gets the
-- next version as its ord. Returns the last version used.
CREATE FUNCTION wrkfs.put_extent(
    a_ino bigint, a_size bigint, a_version bigint, a_pos bigint, a_slice bigint, a_length bigint,
    a_checksums bytea, a_inline bytea
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_pos bigint := a_pos;          -- file offset of the current piece
    v_end bigint := a_pos + a_length;
    v_length bigint;
    v_size bigint := a_length;      -- size of the slice
    v_data bytea := a_inline;
    v_ord bigint := a_version;
    v_slice wrkfs.inline_slice;
BEGIN
    IF a_inline IS NOT NULL AND a_pos <= a_size AND a_pos & 67108863 <> 0
        AND a_pos >> 26 = (v_end - 1) >> 26 THEN
        v_slice := wrkfs.join_inline(a_ino, a_pos, a_length, a_inline);
        v_pos := v_slice.start;
        v_size := v_slice.size;
        v_data := v_slice.data;
    END IF;
    -- Slices are immutable: the primary key rejects an id that is in use.
    IF v_data IS NOT NULL THEN
        INSERT INTO inline (slice_id, data) VALUES (a_slice, v_data);
    END IF;
    a_pos := v_pos;                 -- start of the slice in the file
    WHILE v_pos < v_end LOOP
        v_length := least(v_end - v_pos, 67108864 - (v_pos & 67108863));
        v_ord := v_ord + 1;
        -- Refs end at the file's size (I5), so a piece beyond it covers nothing.
        IF v_pos < a_size THEN
            PERFORM wrkfs.drop_covered(a_ino, v_pos, v_length, a_slice);
        END IF;
        INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums,
            is_inline)
        VALUES (a_ino, v_pos >> 26, v_ord, v_pos, a_slice, v_size, v_pos - a_pos, v_length,
            a_checksums, a_inline IS NOT NULL);
        v_pos := v_pos + v_length;
    END LOOP;
    RETURN v_ord;
END $$;

-- Deletes the refs of a chunk that [a_pos, a_pos + a_length) covers completely, except those of
-- a_slice, and releases their slices.
CREATE FUNCTION wrkfs.drop_covered(a_ino bigint, a_pos bigint, a_length bigint, a_slice bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
    v_sizes bigint[];
    v_inline boolean[];
BEGIN
    WITH gone AS (
        DELETE FROM slice s
        WHERE s.inode = a_ino AND s.chunk = a_pos >> 26 AND s.pos >= a_pos
            AND s.pos + s.length <= a_pos + a_length AND s.slice_id <> a_slice
        RETURNING s.slice_id, s.size, s.is_inline
    )
    SELECT array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
    INTO v_ids, v_sizes, v_inline FROM gone g;
    IF v_ids IS NOT NULL THEN
        PERFORM wrkfs.drop_slices(v_ids, v_sizes, v_inline);
    END IF;
END $$;
