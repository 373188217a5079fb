-- Repairs: one function for each kind of damage that can be repaired without the loss of a byte of a
-- file with a name. Each is one transaction, locks inodes in the order that all functions use, and
-- returns the number of repaired rows. Files and directories that lost their name get one in
-- `lost+found`. Not repaired are: entries outside of directories, cycles of directories, refs outside
-- of their slice, missing bytes, impossible attributes. `repair.py` defines the order.

-- Counters that are lower than numbers in use (I12, I16).
CREATE FUNCTION wrkfs.repair_counters() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    UPDATE counter c SET next = u.last + 1
    FROM (SELECT a.kind, max(a.last) AS last FROM (
              SELECT 'id' AS kind, max(i.ino) AS last FROM inode i
              WHERE NOT wrkfs.is_read_only(i.ino)
              UNION ALL SELECT 'id', max(d.cookie) FROM dentry d
              WHERE NOT wrkfs.is_read_only(d.cookie)
              UNION ALL SELECT 'snapshot', max(i.ino) FROM inode i
              UNION ALL SELECT 'slice', max(s.slice_id) FROM slice s
              UNION ALL SELECT 'slice', max(n.slice_id) FROM inline n
              UNION ALL SELECT 'slice', max(d.slice_id) FROM deleted d
              UNION ALL SELECT 'slice', max(r.first + r.count - 1) FROM slice_range r
              UNION ALL SELECT 'session', max(s.session_id) FROM session s) a
          GROUP BY a.kind) u
    WHERE c.kind = u.kind AND c.next <= u.last;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Sessions without slots, slots without sessions (I11): neither changes anything.
CREATE FUNCTION wrkfs.repair_sessions() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_session bigint;
    v_count bigint := 0;
    v_gone record;
BEGIN
    FOR v_session IN
        SELECT s.session_id FROM session s WHERE s.fenced_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM op_result o WHERE o.session_id = s.session_id)
        ORDER BY s.session_id
    LOOP
        PERFORM wrkfs.fence(v_session, true);
        v_count := v_count + 1;
    END LOOP;
    WITH gone AS (
        DELETE FROM op_result o WHERE NOT EXISTS (
            SELECT 1 FROM session s WHERE s.session_id = o.session_id AND s.fenced_at IS NULL
                AND s.epoch = o.epoch)
        RETURNING o.bytes, o.inodes
    )
    SELECT count(*) AS n, coalesce(sum(g.bytes), 0) AS bytes, coalesce(sum(g.inodes), 0) AS inodes
    INTO v_gone FROM gone g;
    UPDATE usage u SET bytes = u.bytes + v_gone.bytes, inodes = u.inodes + v_gone.inodes
    WHERE v_gone.n > 0;
    RETURN v_count + v_gone.n;
END $$;

-- Rows that refer to a missing inode or session, or to one that has a name (I13, I9, I14).
CREATE FUNCTION wrkfs.repair_leftovers() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    DELETE FROM xattr x WHERE NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = x.ino);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM sustained h WHERE NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = h.ino)
        OR NOT EXISTS (SELECT 1 FROM session s WHERE s.session_id = h.session_id);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    DELETE FROM symlink l WHERE NOT EXISTS (
        SELECT 1 FROM inode i WHERE i.ino = l.ino AND i.mode >> 12 = 10);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    DELETE FROM trash t WHERE NOT EXISTS (
        SELECT 1 FROM inode i WHERE i.ino = t.ino AND i.nlink = 0);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    DELETE FROM removed_link l WHERE NOT EXISTS (
        SELECT 1 FROM inode i WHERE i.ino = l.ino AND i.mode >> 12 <> 4);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- Delegations and reservations of missing sessions, delegations of missing or removed directories, and
-- negative reservations (I19, I20). A holder may still have changes of a directory that is missing: the
-- database then refuses them, and the holder reports the loss.
CREATE FUNCTION wrkfs.repair_delegations() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    DELETE FROM delegation g WHERE NOT EXISTS (
            SELECT 1 FROM inode i WHERE i.ino = g.ino AND i.mode >> 12 = 4 AND i.nlink > 0)
        OR NOT EXISTS (
            SELECT 1 FROM session s WHERE s.session_id = g.session_id AND s.fenced_at IS NULL);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM reservation r WHERE r.bytes < 0 OR r.inodes < 0 OR NOT EXISTS (
        SELECT 1 FROM session s WHERE s.session_id = r.session_id AND s.fenced_at IS NULL);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- Entries that refer to no inode (I1). Creations of entries lock the directory, as this does.
CREATE FUNCTION wrkfs.repair_entries() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY(
        SELECT DISTINCT d.parent FROM dentry d
        WHERE NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = d.ino)));
    DELETE FROM dentry d WHERE NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = d.ino);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Directories whose parent is not the directory of their only entry (I4).
CREATE FUNCTION wrkfs.repair_parents() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY(
        SELECT i.ino FROM inode i JOIN dentry d ON d.ino = i.ino
        WHERE i.mode >> 12 = 4 AND i.nlink > 0 AND i.parent <> d.parent));
    UPDATE inode i SET parent = d.parent
    FROM (SELECT e.ino, min(e.parent) AS parent FROM dentry e GROUP BY e.ino HAVING count(*) = 1) d
    WHERE d.ino = i.ino AND i.mode >> 12 = 4 AND i.nlink > 0 AND i.parent <> d.parent;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    -- The parent of an inode with one name may be unknown (0), but not wrong.
    UPDATE inode i SET parent = 0 FROM dentry d
    WHERE d.ino = i.ino AND i.mode >> 12 <> 4 AND i.nlink > 0 AND i.parent <> 0
        AND i.parent <> d.parent;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- The directory `lost+found` of the root, created if missing; 0 if the root cannot have one.
CREATE FUNCTION wrkfs.lost_and_found() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_ino bigint;
    v_now bigint := wrkfs.now_ns();
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY[1::bigint]);
    SELECT d.ino INTO v_ino FROM dentry d JOIN inode i ON i.ino = d.ino AND i.mode >> 12 = 4
    WHERE d.parent = 1 AND d.name = 'lost+found'::bytea;
    IF FOUND THEN RETURN v_ino; END IF;
    UPDATE counter c SET next = c.next + 1 WHERE c.kind = 'id' RETURNING c.next - 1 INTO v_ino;
    INSERT INTO dentry (parent, name, ino, cookie) VALUES (1, 'lost+found'::bytea, v_ino, v_ino)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 0; END IF;
    UPDATE inode i SET nlink = i.nlink + 1, mtime = v_now, ctime = v_now WHERE i.ino = 1;
    INSERT INTO inode (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version, parent)
    VALUES (v_ino, 16832, 2, 0, 0, 0, 0, v_now, v_now, v_now, 0, 1);
    UPDATE usage u SET inodes = u.inodes + 1;
    RETURN v_ino;
END $$;

-- Inodes without a name or a holder (I2, I3). A removed one (nlink 0, no directory) is freed. Any other
-- gets the name `#<inode>` in `lost+found`.
CREATE FUNCTION wrkfs.repair_nameless() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_lost bigint[];
    v_free bigint[];
    v_freed wrkfs.freed;
    v_home bigint;
BEGIN
    SELECT array_agg(i.ino ORDER BY i.ino) FILTER (WHERE i.nlink <> 0 OR i.mode >> 12 = 4),
        array_agg(i.ino ORDER BY i.ino) FILTER (WHERE i.nlink = 0 AND i.mode >> 12 <> 4)
    INTO v_lost, v_free FROM inode i
    WHERE i.ino <> 1 AND NOT wrkfs.is_held(i.ino)
        AND NOT EXISTS (SELECT 1 FROM dentry d WHERE d.ino = i.ino);
    IF v_free IS NOT NULL THEN
        PERFORM wrkfs.lock_inodes(v_free);
        SELECT array_agg(i.ino) INTO v_free FROM inode i
        WHERE i.ino = ANY (v_free) AND i.nlink = 0 AND NOT wrkfs.is_held(i.ino)
            AND NOT EXISTS (SELECT 1 FROM dentry d WHERE d.ino = i.ino);
        v_freed := wrkfs.free_inodes(coalesce(v_free, '{}'));
        UPDATE usage u SET bytes = u.bytes - v_freed.bytes, inodes = u.inodes - v_freed.inodes;
    END IF;
    IF v_lost IS NOT NULL THEN
        v_home := wrkfs.lost_and_found();
        IF v_home = 0 THEN RETURN coalesce(cardinality(v_free), 0); END IF;
        PERFORM wrkfs.lock_inodes(v_home || v_lost);
        UPDATE inode i SET parent = CASE WHEN i.mode >> 12 = 4 THEN v_home ELSE 0 END
        WHERE i.ino = ANY (v_lost);
        INSERT INTO dentry (parent, name, ino, cookie)
        SELECT v_home, convert_to('#' || i.ino, 'UTF8'), i.ino, i.ino FROM inode i
        WHERE i.ino = ANY (v_lost) AND NOT EXISTS (SELECT 1 FROM dentry d WHERE d.ino = i.ino)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN coalesce(cardinality(v_free), 0) + coalesce(cardinality(v_lost), 0);
END $$;

-- Link counts (I2, I3), of inodes that have a name.
CREATE FUNCTION wrkfs.repair_links() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
    v_count bigint;
BEGIN
    SELECT array_agg(f.ino) INTO v_inos
    FROM (SELECT c.ino FROM wrkfs.check_2(2147483647) c
          UNION SELECT c.ino FROM wrkfs.check_3(2147483647) c) f;
    PERFORM wrkfs.lock_inodes(v_inos);
    UPDATE inode i SET nlink = CASE WHEN i.mode >> 12 = 4
        THEN 2 + (SELECT count(*) FROM dentry d JOIN inode c ON c.ino = d.ino
                  WHERE d.parent = i.ino AND c.mode >> 12 = 4)
        ELSE e.n END,
        parent = CASE WHEN i.mode >> 12 = 4 THEN i.parent ELSE 0 END
    FROM (SELECT d.ino, count(*) AS n FROM dentry d WHERE d.ino = ANY (v_inos) GROUP BY d.ino
          UNION ALL SELECT 1, 1 WHERE 1 = ANY (v_inos)) e
    WHERE e.ino = i.ino;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Refs beyond the end of their file are clipped, as in a truncation. Refs of inodes that are not files
-- release their slices (I5).
CREATE FUNCTION wrkfs.repair_refs() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
    v_ids bigint[];
    v_sizes bigint[];
    v_inline boolean[];
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY(
        SELECT DISTINCT s.inode FROM slice s JOIN inode i ON i.ino = s.inode
        WHERE s.pos::numeric + s.length > i.size));
    UPDATE slice s SET length = i.size - s.pos FROM inode i
    WHERE i.ino = s.inode AND i.mode >> 12 = 8 AND s.pos < i.size
        AND s.pos::numeric + s.length > i.size;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    WITH gone AS (
        DELETE FROM slice s WHERE NOT EXISTS (
            SELECT 1 FROM inode i WHERE i.ino = s.inode AND i.mode >> 12 = 8 AND s.pos < i.size)
        RETURNING s.slice_id, s.size, s.is_inline
    )
    SELECT count(*), array_agg(g.slice_id), array_agg(g.size), array_agg(g.is_inline)
    INTO v_more, v_ids, v_sizes, v_inline FROM gone g;
    IF v_ids IS NOT NULL THEN PERFORM wrkfs.drop_slices(v_ids, v_sizes, v_inline); END IF;
    RETURN v_count + v_more;
END $$;

-- Visible slices do not wait for deletion (I8); invisible inline bytes are deleted (I7).
CREATE FUNCTION wrkfs.repair_slices() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    DELETE FROM deleted d WHERE EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = d.slice_id);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM inline n
    WHERE NOT EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = n.slice_id);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- Bytes in holes (I12).
CREATE FUNCTION wrkfs.repair_holes() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
    v_count bigint;
BEGIN
    SELECT array_agg(i.ino) INTO v_inos
    FROM inode i LEFT JOIN wrkfs.all_covered() v ON v.ino = i.ino
    WHERE i.mode >> 12 = 8 AND i.size::numeric - i.holes <> coalesce(v.bytes, 0);
    IF v_inos IS NULL THEN RETURN 0; END IF;
    PERFORM wrkfs.lock_inodes(v_inos);
    UPDATE inode i SET holes = i.size - f.bytes
    FROM (SELECT n.ino, coalesce(v.bytes, 0) AS bytes
          FROM unnest(v_inos) AS n (ino) LEFT JOIN wrkfs.all_covered() v ON v.ino = n.ino) f
    WHERE f.ino = i.ino AND i.size >= f.bytes;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Borrowed bytes and shared slices (I18). The lock of the row `usage` is that of `settle_shared`.
CREATE FUNCTION wrkfs.repair_shares() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
    v_count bigint := 0;
    v_more bigint;
BEGIN
    SELECT array_agg(i.ino) INTO v_inos
    FROM inode i LEFT JOIN wrkfs.all_borrowed() b ON b.ino = i.ino
    WHERE i.borrowed <> coalesce(b.bytes, 0);
    IF v_inos IS NOT NULL THEN
        PERFORM wrkfs.lock_inodes(v_inos);
        UPDATE inode i SET borrowed = f.bytes
        FROM (SELECT n.ino, coalesce(b.bytes, 0) AS bytes
              FROM unnest(v_inos) AS n (ino) LEFT JOIN wrkfs.all_borrowed() b ON b.ino = n.ino) f
        WHERE f.ino = i.ino;
        GET DIAGNOSTICS v_count = ROW_COUNT;
    END IF;
    PERFORM 1 FROM usage u FOR NO KEY UPDATE;
    DELETE FROM shared_slice h WHERE NOT EXISTS (
        SELECT 1 FROM wrkfs.true_shares() t WHERE t.slice_id = h.slice_id AND t.bytes = h.bytes);
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    INSERT INTO shared_slice (slice_id, bytes) SELECT t.slice_id, t.bytes FROM wrkfs.true_shares() t
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    UPDATE usage u SET shared = t.bytes
    FROM (SELECT coalesce(sum(h.bytes), 0) AS bytes FROM shared_slice h) t WHERE u.shared <> t.bytes;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- Snapshots without a tree, and trees in `.snapshots` that are no snapshot (I17). Such a tree gets a row
-- again, so that `snapshot rm` can remove it.
CREATE FUNCTION wrkfs.repair_snapshots() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY[wrkfs.snapshots_ino()]);
    DELETE FROM snapshot s WHERE NOT EXISTS (
        SELECT 1 FROM dentry d
        WHERE d.parent = wrkfs.snapshots_ino() AND d.name = s.name AND d.ino = s.ino);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    INSERT INTO snapshot (name, ino, path, created_at, inodes, bytes)
    SELECT d.name, d.ino, '\x', clock_timestamp(), 0, 0 FROM dentry d
    WHERE d.parent = wrkfs.snapshots_ino()
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- The data of trash rows on their inodes (I14, I15).
CREATE FUNCTION wrkfs.repair_trash() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_more bigint;
BEGIN
    PERFORM wrkfs.lock_inodes(ARRAY(SELECT t.ino FROM trash t));
    UPDATE inode i SET parent = coalesce(
        (SELECT min(t.parent) FROM trash t WHERE t.ino = i.ino), 0)
    WHERE i.nlink = 0 AND i.parent IS DISTINCT FROM coalesce(
        (SELECT min(t.parent) FROM trash t WHERE t.ino = i.ino), 0);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM trash t USING inode i WHERE i.ino = t.ino AND t.parent <> i.parent;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    v_count := v_count + v_more;
    UPDATE trash t SET bytes = k.kept
    FROM (SELECT i.ino, CASE WHEN i.mode >> 12 = 8 AND NOT EXISTS (
              SELECT 1 FROM sustained s WHERE s.ino = i.ino)
              THEN i.size - i.holes - i.borrowed ELSE 0 END AS kept
          FROM inode i WHERE i.nlink = 0) k
    WHERE k.ino = t.ino AND t.bytes <> k.kept;
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END $$;

-- Sizes of symbolic links (I9).
CREATE FUNCTION wrkfs.repair_symlinks() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    UPDATE inode i SET size = octet_length(l.target) FROM symlink l
    WHERE l.ino = i.ino AND i.mode >> 12 = 10 AND i.size <> octet_length(l.target);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Booked usage (I10): all of it moves into one row. The locks of the slots wait for calls in progress
-- and prevent other bookings in the meantime.
CREATE FUNCTION wrkfs.repair_use() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM op_result o ORDER BY o.session_id, o.slot FOR NO KEY UPDATE;
    PERFORM 1 FROM wrkfs.true_use() t, wrkfs.booked_use() b
    WHERE t.bytes = b.bytes AND t.inodes = b.inodes;
    IF FOUND THEN RETURN 0; END IF;
    UPDATE op_result o SET bytes = 0, inodes = 0;
    UPDATE usage u SET bytes = t.bytes - u.shared, inodes = t.inodes FROM wrkfs.true_use() t;
    RETURN 1;
END $$;

-- Recalls leases that were taken before a_before, up to a hundred of each holder, and returns the
-- number of remaining ones and their holders. Call it until none remains. A lease that was taken later
-- covers nothing that was read before.
CREATE FUNCTION wrkfs.recall_before(
    a_before timestamptz, OUT remaining bigint, OUT holders bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
BEGIN
    SELECT array_agg(DISTINCT o.ino) INTO v_inos FROM (
        SELECT l.ino, row_number() OVER (PARTITION BY l.session_id ORDER BY l.ino) AS number
        FROM lease l WHERE l.ino > 0 AND l.taken_at < a_before) o
    WHERE o.number <= 100;
    IF v_inos IS NOT NULL THEN PERFORM wrkfs.recall_leases(0, v_inos); END IF;
    SELECT count(*), array_agg(DISTINCT l.session_id) INTO remaining, holders
    FROM lease l WHERE l.ino > 0 AND l.taken_at < a_before;
END $$;
