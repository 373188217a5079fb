-- Reading ahead: many directories in one call, and leases on the directories that come next.
--
-- A cached answer needs a lease that was committed before its snapshot. So a call reads directories
-- that earlier calls leased, and takes leases for the next call.

-- A row of `read_tree`. part 0: the session now has a lease on the directory ino; 1: the attributes of
-- a directory, after its entries; 2: an entry; 3: an entry that is a file, with its refs as in
-- map_reply; 4: an entry that is a file whose map is too long; 5: a directory whose entries count for
-- nothing, because a delegation of another session covers some of them (1_delegations.sql). flag:
-- settled (1_leases.sql). Of a directory, `cookie` is 1 if its entries are complete.
CREATE TYPE wrkfs.tree_reply AS (
    part integer, flag boolean,
    ino bigint, mode integer, nlink integer, uid bigint, gid bigint, rdev bigint, size bigint,
    atime bigint, mtime bigint, ctime bigint, version bigint, parent bigint, holes bigint,
    borrowed bigint,
    ref_pos bigint[], ref_slice bigint[], ref_size bigint[], ref_off bigint[], ref_length bigint[],
    ref_checksums bytea[], ref_inline bytea[], cookie bigint, name bytea
);

-- Returns the entries of directories, in the order of a_inos and of cookies: at most a_entries. The
-- rows contain maps until these have a_bytes of inline bytes and checksums. A file with more than 16
-- refs or 64 KiB of them gets no map. a_maps_only: the answer ends with the last map that fits, and
-- the first directory begins after the cookie a_after.
-- Skips numbers that are no directory. STABLE: all statements use the snapshot of the calling query.
CREATE FUNCTION wrkfs.read_directories(
    a_inos bigint[], a_entries integer, a_bytes bigint, a_maps_only boolean, a_after bigint
) RETURNS SETOF wrkfs.tree_reply LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.tree_reply;
    v record;
    v_ino bigint;
    v_entries integer := a_entries;
    v_bytes bigint := a_bytes;
    v_used bigint;
    v_count integer;
    v_over boolean;
    v_after bigint := a_after;
    v_me bigint := wrkfs.me();
    v_held boolean;
BEGIN
    FOREACH v_ino IN ARRAY a_inos LOOP
        EXIT WHEN v_entries <= 0 OR a_maps_only AND v_bytes <= 0;
        v_count := 0;
        v_used := 0;
        v_over := false;
        v_held := EXISTS (SELECT 1 FROM delegation d WHERE d.ino = v_ino AND d.session_id <> v_me);
        FOR v IN
            SELECT e.*, f.* FROM (
                SELECT wrkfs.settled(i.xmax) AS flag, i.*, d.cookie, d.name, m.bytes,
                    i.mode >> 12 = 4 AND EXISTS (SELECT 1 FROM delegation h
                        WHERE h.ino = i.ino AND h.session_id <> v_me) AS held,
                    m.refs <= 16 AND m.bytes <= 65536 AS fits,
                    sum(CASE WHEN m.refs <= 16 AND m.bytes <= 65536 THEN m.bytes ELSE 0 END)
                        OVER (ORDER BY d.cookie) AS total
                FROM dentry d JOIN inode i ON i.ino = d.ino
                    LEFT JOIN LATERAL (
                        SELECT count(*) AS refs, coalesce(sum(CASE WHEN s.is_inline THEN s.size
                            ELSE octet_length(s.checksums) END), 0) AS bytes
                        FROM slice s WHERE s.inode = i.ino
                    ) m ON i.mode >> 12 = 8 AND i.size > 0 AND v_bytes > 0
                WHERE d.parent = v_ino AND d.cookie > v_after AND d.ino <> wrkfs.snapshots_ino()
                ORDER BY d.cookie LIMIT v_entries
            ) e LEFT JOIN LATERAL (
                SELECT array_agg(g.pos) AS ref_pos, array_agg(g.slice_id) AS ref_slice,
                    array_agg(g.size) AS ref_size, array_agg(g.off) AS ref_off,
                    array_agg(g.length) AS ref_length, array_agg(g.checksums) AS ref_checksums,
                    array_agg(g.data) AS ref_inline
                FROM (SELECT s.pos, s.slice_id, s.size, s.off, s.length, s.checksums, n.data
                      FROM slice s LEFT JOIN inline n ON s.is_inline AND n.slice_id = s.slice_id
                      WHERE s.inode = e.ino ORDER BY s.ord) g
            ) f ON e.fits AND e.total <= v_bytes
            ORDER BY e.cookie
        LOOP
            v_count := v_count + 1;
            v_held := v_held OR v.held;
            r := (2, v.flag, v.ino, v.mode, v.nlink, v.uid, v.gid, v.rdev, v.size, v.atime, v.mtime,
                v.ctime, v.version, v.parent, v.holes, v.borrowed, v.ref_pos, v.ref_slice, v.ref_size,
                v.ref_off, v.ref_length, v.ref_checksums, v.ref_inline, v.cookie, v.name);
            IF v.fits AND v.total <= v_bytes THEN
                r.part := 3;
                v_used := v.total;
            ELSIF v.fits THEN
                v_over := true;
            ELSIF v.bytes IS NOT NULL THEN
                r.part := 4;
            END IF;
            RETURN NEXT r;
            EXIT WHEN v_over AND a_maps_only;
        END LOOP;
        -- A map that does not fit is the last one: the next call continues in this directory.
        v_bytes := CASE WHEN v_over THEN 0 ELSE v_bytes - v_used END;
        SELECT 1, wrkfs.settled(i.xmax), i.ino, i.mode, i.nlink, i.uid, i.gid, i.rdev, i.size,
            i.atime, i.mtime, i.ctime, i.version, i.parent, i.holes INTO r
        FROM inode i WHERE i.ino = v_ino AND i.mode >> 12 = 4 AND i.nlink > 0;
        IF FOUND THEN
            IF v_held THEN r.part := 5; END IF;
            r.cookie := (v_count < v_entries AND NOT (v_over AND a_maps_only))::integer;
            RETURN NEXT r;
        END IF;
        v_entries := v_entries - v_count - 1;
        v_after := 0;
    END LOOP;
END $$;

-- Takes leases on directories, as `take_lease` does on one, and returns those that it took. It takes
-- none where another session has priority or a delegation.
CREATE FUNCTION wrkfs.take_leases(
    a_session bigint, a_epoch bigint, a_number bigint, a_inos bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM session s WHERE s.session_id = a_session AND s.epoch = a_epoch
        AND s.channel IS NOT NULL AND s.fenced_at IS NULL AND s.expires_at > clock_timestamp();
    IF NOT FOUND THEN RETURN; END IF;
    RETURN QUERY
    INSERT INTO lease AS l (ino, session_id, taken_at, number)
    SELECT i.ino, a_session, clock_timestamp(), a_number FROM inode i
    WHERE i.ino = ANY (a_inos) AND i.mode >> 12 = 4 AND i.nlink > 0
        AND NOT EXISTS (SELECT 1 FROM recall c WHERE c.ino = i.ino AND c.session_id <> a_session
            AND c.until > clock_timestamp())
        AND NOT EXISTS (SELECT 1 FROM delegation d
            WHERE d.ino = i.ino AND d.session_id <> a_session)
    ORDER BY i.ino
    ON CONFLICT (ino, session_id) DO UPDATE SET number = greatest(l.number, excluded.number)
    RETURNING l.ino;
END $$;

-- Reads directories that the session has leased (`read_directories`). Takes leases on a_take, and on
-- at most a_leases of the subdirectories that it returns. a_number: see `take_lease`.
CREATE FUNCTION wrkfs.read_tree(
    a_session bigint, a_epoch bigint, a_number bigint, a_inos bigint[], a_entries integer,
    a_bytes bigint, a_maps_only boolean, a_after bigint, a_take bigint[], a_leases integer
) RETURNS SETOF wrkfs.tree_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.tree_reply;
    v_next bigint[] := a_take;
    v_left integer := a_leases;
BEGIN
    FOR r IN
        SELECT * FROM wrkfs.read_directories(a_inos, a_entries, a_bytes, a_maps_only, a_after)
    LOOP
        RETURN NEXT r;
        IF r.part = 2 AND v_left > 0 AND r.mode >> 12 = 4 THEN
            v_next := array_append(v_next, r.ino);
            v_left := v_left - 1;
        END IF;
    END LOOP;
    IF cardinality(v_next) = 0 THEN RETURN; END IF;
    r := NULL;
    r.part := 0;
    r.flag := true;
    FOR r.ino IN SELECT * FROM wrkfs.take_leases(a_session, a_epoch, a_number, v_next) LOOP
        RETURN NEXT r;
    END LOOP;
END $$;
