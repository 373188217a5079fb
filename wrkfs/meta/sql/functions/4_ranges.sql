-- Ranges of regular files: holes that a program makes, and copies that share slices.

-- The refs that a range of a file lost: what drop_slices needs.
CREATE TYPE wrkfs.lost_refs AS (version bigint, ids bigint[], sizes bigint[], is_inline boolean[]);

-- Visible pieces of refs, in the order of their positions. `start`: offset in the file.
CREATE TYPE wrkfs.piece AS (
    start bigint, length bigint, slice_id bigint, size bigint, off bigint, checksums bytea,
    is_inline boolean, borrowed boolean
);

-- Returns what [a_start, a_end) of a file shows, without overlaps. Holes have no piece.
CREATE FUNCTION wrkfs.visible(a_ino bigint, a_start bigint, a_end bigint)
RETURNS SETOF wrkfs.piece LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT lower(v.part), upper(v.part) - lower(v.part), v.slice_id, v.size,
        v.off + (lower(v.part) - v.pos), v.checksums, v.is_inline, v.borrowed
    FROM (
        SELECT r.*, unnest(
            int8multirange(int8range(greatest(r.pos, a_start), least(r.pos + r.length, a_end)))
            - coalesce(r.newer, '{}'::int8multirange)) AS part
        FROM (
            SELECT s.*, range_agg(int8range(s.pos, s.pos + s.length)) OVER (
                PARTITION BY s.chunk ORDER BY s.ord DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newer
            FROM slice s
            WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
                AND s.pos < a_end AND s.pos + s.length > a_start
        ) r
    ) v
    ORDER BY 1;
END $$;

-- Adds pieces to a locked file as refs above all others, cut at chunk boundaries. a_shift moves their
-- positions. Returns the last version used. The pieces do not overlap.
CREATE FUNCTION wrkfs.put_pieces(
    a_ino bigint, a_version bigint, a_pieces wrkfs.piece[], a_shift bigint, a_borrowed boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums, is_inline,
        borrowed)
    SELECT a_ino, c.chunk, a_version + row_number() OVER (ORDER BY c.low), c.low, p.slice_id, p.size,
        p.off + (c.low - p.start - a_shift), c.high - c.low, p.checksums, p.is_inline,
        p.borrowed OR a_borrowed
    FROM unnest(a_pieces) AS p
    CROSS JOIN LATERAL (
        SELECT n AS chunk, greatest(p.start + a_shift, n << 26) AS low,
            least(p.start + a_shift + p.length - 1, ((n + 1) << 26) - 1) + 1 AS high
        FROM generate_series((p.start + a_shift) >> 26, (p.start + a_shift + p.length - 1) >> 26) AS n
    ) c;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN a_version + v_count;
END $$;

-- Removes [a_start, a_end) from the refs of a locked file: it becomes a hole. A ref that shows bytes on
-- both sides is cut in two; the second part is on top of newer refs, so it has only what was visible.
-- The caller passes the result to drop_slices when all new refs are there.
CREATE FUNCTION wrkfs.cut_range(a_ino bigint, a_version bigint, a_start bigint, a_end bigint)
RETURNS wrkfs.lost_refs LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.lost_refs;
    v_tails wrkfs.piece[];
    v_split record;
BEGIN
    r.version := a_version;
    FOR v_split IN
        SELECT s.chunk, s.ord, s.pos, s.length FROM slice s
        WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
            AND s.pos < a_start AND s.pos + s.length > a_end
    LOOP
        SELECT v_tails || array_agg(v.piece) INTO v_tails FROM (
            SELECT ROW(lower(t.part), upper(t.part) - lower(t.part), s.slice_id, s.size,
                s.off + (lower(t.part) - s.pos), s.checksums, s.is_inline, s.borrowed
                )::wrkfs.piece AS piece
            FROM slice s CROSS JOIN LATERAL unnest(
                int8multirange(int8range(a_end, v_split.pos + v_split.length)) - coalesce(
                    (SELECT range_agg(int8range(n.pos, n.pos + n.length)) FROM slice n
                     WHERE n.inode = a_ino AND n.chunk = v_split.chunk AND n.ord > v_split.ord),
                    '{}'::int8multirange)) AS t (part)
            WHERE s.inode = a_ino AND s.chunk = v_split.chunk AND s.ord = v_split.ord) v;
    END LOOP;
    WITH gone AS (
        DELETE FROM slice s
        WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
            AND s.pos >= a_start AND s.pos + s.length <= a_end
        RETURNING s.slice_id, s.size, s.is_inline
    )
    SELECT array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
    INTO r.ids, r.sizes, r.is_inline FROM gone g;
    UPDATE slice s SET
        pos = CASE WHEN s.pos < a_start THEN s.pos ELSE a_end END,
        off = CASE WHEN s.pos < a_start THEN s.off ELSE s.off + (a_end - s.pos) END,
        length = CASE WHEN s.pos < a_start THEN a_start - s.pos ELSE s.pos + s.length - a_end END
    WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
        AND s.pos < a_end AND s.pos + s.length > a_start;
    IF v_tails IS NOT NULL THEN
        r.version := wrkfs.put_pieces(a_ino, r.version, v_tails, 0, false);
    END IF;
    RETURN r;
END $$;

-- Checks a locked file for a change of its bytes. Returns 0, ESTALE, EISDIR or EINVAL.
CREATE FUNCTION wrkfs.check_file(a_file wrkfs.reply) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF a_file.ino IS NULL OR wrkfs.is_gone(a_file.ino, a_file.nlink) THEN RETURN 116; END IF;
    IF a_file.mode >> 12 = 4 THEN RETURN 21; END IF;
    RETURN CASE WHEN a_file.mode >> 12 = 8 THEN 0 ELSE 22 END;
END $$;

-- Clears [a_start, a_start + a_length) of a file (a_clear), which makes it a hole, or checks that its
-- holes have room in the quota. With a_grow the file then ends at the end of the range or later.
CREATE FUNCTION wrkfs.allocate(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_start bigint, a_length bigint, a_clear boolean, a_grow boolean
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    f wrkfs.reply;          -- the file before the call
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_lost wrkfs.lost_refs;
    v_now bigint;
    v_end bigint;           -- end of the range that is cleared
    v_size bigint;
    v_holes bigint := 0;    -- bytes that become holes
    v_borrowed bigint := 0; -- those of them that were borrowed
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_read_only(a_ino) THEN r.errno := 30; RETURN r; END IF;
    IF a_start < 0 OR a_length < 1 THEN r.errno := 22; RETURN r; END IF;
    IF a_length > 9223372036854775807 - a_start THEN r.errno := 27; RETURN r; END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    SELECT 0, false, i.* INTO f FROM inode i WHERE i.ino = a_ino FOR NO KEY UPDATE;
    r.errno := wrkfs.check_file(f);
    IF r.errno <> 0 THEN RETURN r; END IF;
    v_end := least(a_start + a_length, f.size);
    v_size := CASE WHEN a_grow THEN greatest(f.size, a_start + a_length) ELSE f.size END;
    IF NOT a_clear AND wrkfs.over_quota(a_length - CASE WHEN a_start < v_end
        THEN wrkfs.owned(a_ino, a_start, v_end) ELSE 0 END, 0) THEN
        r.errno := 122;
        RETURN r;
    END IF;
    IF wrkfs.recalls(a_session, ARRAY[wrkfs.home(f.ino, f.mode, f.nlink, f.parent)]) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_lost.version := f.version + 1;
    IF a_clear AND a_start < v_end THEN
        v_holes := wrkfs.covered(a_ino, a_start, v_end);
        IF f.borrowed > 0 THEN v_borrowed := wrkfs.borrowed(a_ino, a_start, v_end); END IF;
        v_lost := wrkfs.cut_range(a_ino, v_lost.version, a_start, v_end);
        IF v_lost.ids IS NOT NULL THEN
            PERFORM wrkfs.drop_slices(v_lost.ids, v_lost.sizes, v_lost.is_inline);
        END IF;
    END IF;
    v_now := wrkfs.now_ns();
    UPDATE inode i SET size = v_size, holes = f.holes + v_holes + (v_size - f.size),
        borrowed = f.borrowed - v_borrowed, version = v_lost.version, mtime = v_now, ctime = v_now
    WHERE i.ino = a_ino RETURNING 0, false, i.* INTO r;
    r.errno := wrkfs.op_end(
        a_session, a_slot, a_seq, a_ino, false, v_borrowed - v_holes, 0);
    RETURN r;
END $$;

-- Copies [a_from, a_from + a_length) of a_source to a_to in a_target, by refs to the same slices. The
-- new refs are borrowed (1_sharing.sql), so the copy uses nothing of the quota. ERANGE: the range ends
-- behind the source; EINVAL: source and target are one file, and the ranges overlap.
CREATE FUNCTION wrkfs.copy_range(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_source bigint, a_from bigint, a_target bigint, a_to bigint, a_length bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    f wrkfs.reply;          -- the target before the call
    v_source wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_pieces wrkfs.piece[];
    v_put bigint;           -- bytes of the pieces
    v_lost wrkfs.lost_refs;
    v_now bigint;
    v_end bigint;
    v_covered bigint := 0;  -- bytes of the target's range that were no holes
    v_borrowed bigint := 0;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_read_only(a_target) THEN r.errno := 30; RETURN r; END IF;
    IF a_from < 0 OR a_to < 0 OR a_length < 1 OR a_source = a_target
        AND a_from < a_to + a_length::numeric AND a_to < a_from + a_length::numeric THEN
        r.errno := 22;
        RETURN r;
    END IF;
    IF a_length > 9223372036854775807 - greatest(a_from, a_to) THEN r.errno := 27; RETURN r; END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_source, a_target]) THEN r.errno := -2; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_source, a_target]);
    SELECT 0, false, i.* INTO v_source FROM inode i WHERE i.ino = a_source;
    SELECT 0, false, i.* INTO f FROM inode i WHERE i.ino = a_target;
    r.errno := coalesce(nullif(wrkfs.check_file(v_source), 0), wrkfs.check_file(f));
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF a_from + a_length > v_source.size THEN r.errno := 34; RETURN r; END IF;
    IF wrkfs.recalls(a_session, ARRAY[wrkfs.home(f.ino, f.mode, f.nlink, f.parent)]) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    SELECT array_agg(p), coalesce(sum(p.length), 0) INTO v_pieces, v_put
    FROM wrkfs.visible(a_source, a_from, a_from + a_length) AS p;
    v_end := least(a_to + a_length, f.size);
    v_lost.version := f.version + 1;
    IF a_to < v_end THEN
        v_covered := wrkfs.covered(a_target, a_to, v_end);
        IF f.borrowed > 0 THEN v_borrowed := wrkfs.borrowed(a_target, a_to, v_end); END IF;
        v_lost := wrkfs.cut_range(a_target, v_lost.version, a_to, v_end);
    END IF;
    IF v_pieces IS NOT NULL THEN
        v_lost.version := wrkfs.put_pieces(
            a_target, v_lost.version, v_pieces, a_to - a_from, true);
    END IF;
    -- Only now: the target may have had the same slices before.
    IF v_lost.ids IS NOT NULL THEN
        PERFORM wrkfs.drop_slices(v_lost.ids, v_lost.sizes, v_lost.is_inline);
    END IF;
    v_now := wrkfs.now_ns();
    v_end := greatest(f.size, a_to + a_length);
    UPDATE inode i SET size = v_end, holes = f.holes + (v_end - f.size) + v_covered - v_put,
        borrowed = f.borrowed - v_borrowed + v_put, version = v_lost.version,
        mtime = v_now, ctime = v_now
    WHERE i.ino = a_target RETURNING 0, false, i.* INTO r;
    r.errno := wrkfs.op_end(
        a_session, a_slot, a_seq, a_target, false, v_borrowed - v_covered, 0);
    RETURN r;
END $$;
