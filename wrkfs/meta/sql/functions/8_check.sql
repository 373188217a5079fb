-- Checks: one function for each invariant of schema.sql, by number. Each returns up to a_limit
-- breaches, as (inode or 0, raw name or NULL, text), and changes nothing. Each runs in a REPEATABLE
-- READ transaction, so that its statements see one snapshot.
--
-- Rows may be hostile. So sums use numeric, and walks use a UNION that drops rows seen before. These
-- functions read whole tables: they need the planner's usual settings, not those of `statements.py`.

CREATE TYPE wrkfs.finding AS (ino bigint, name bytea, detail text);

-- I1: entries refer to inodes and are in directories.
CREATE FUNCTION wrkfs.check_1(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT d.parent, d.name, format('names inode %s, which is missing', d.ino)
    FROM dentry d LEFT JOIN inode i ON i.ino = d.ino WHERE i.ino IS NULL
    UNION ALL
    SELECT d.parent, d.name, format('stands in inode %s, which is no directory', d.parent)
    FROM dentry d LEFT JOIN inode p ON p.ino = d.parent AND p.mode >> 12 = 4
    WHERE p.ino IS NULL
    LIMIT a_limit;
END $$;

-- I2: links and names of directories.
CREATE FUNCTION wrkfs.check_2(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT 1::bigint, NULL::bytea, 'the root is missing'
    WHERE NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = 1 AND i.mode >> 12 = 4)
    UNION ALL
    SELECT f.ino, NULL::bytea, format(
        'directory with nlink %s, parent %s, %s subdirectories, %s names',
        f.nlink, f.parent, f.below, f.names)
    FROM (SELECT i.ino, i.nlink, i.parent, coalesce(b.n, 0) AS below, coalesce(e.n, 0) AS names
          FROM inode i
          LEFT JOIN (SELECT d.parent, count(*) AS n FROM dentry d JOIN inode c ON c.ino = d.ino
                     WHERE c.mode >> 12 = 4 GROUP BY d.parent) b ON b.parent = i.ino
          LEFT JOIN (SELECT d.ino, count(*) AS n FROM dentry d GROUP BY d.ino) e ON e.ino = i.ino
          WHERE i.mode >> 12 = 4) f
    WHERE NOT CASE
        WHEN f.ino = 1 THEN f.nlink = 2 + f.below AND f.names = 0 AND f.parent = 1
        WHEN f.nlink = 0 THEN f.names = 0 AND (
            EXISTS (SELECT 1 FROM sustained s WHERE s.ino = f.ino AND s.doomed)
            OR EXISTS (SELECT 1 FROM trash t WHERE t.ino = f.ino))
        ELSE f.nlink = 2 + f.below AND f.names = 1 END
    LIMIT a_limit;
END $$;

-- I3: links of other inodes; an inode without a name has a holder.
CREATE FUNCTION wrkfs.check_3(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT i.ino, NULL::bytea, CASE WHEN i.nlink <> coalesce(e.n, 0)
        THEN format('nlink %s, but %s names', i.nlink, coalesce(e.n, 0))
        ELSE 'no name, and nothing holds it' END
    FROM inode i
    LEFT JOIN (SELECT d.ino, count(*) AS n FROM dentry d GROUP BY d.ino) e ON e.ino = i.ino
    WHERE i.mode >> 12 <> 4 AND (i.nlink <> coalesce(e.n, 0) OR i.nlink = 0
        AND NOT wrkfs.is_held(i.ino))
    LIMIT a_limit;
END $$;

-- I4: the path from each directory to the root, or to a detached directory.
CREATE FUNCTION wrkfs.check_4(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT i.ino, d.name, format('parent %s, but its entry stands in %s', i.parent, d.parent)
    FROM inode i JOIN dentry d ON d.ino = i.ino
    WHERE i.mode >> 12 = 4 AND i.nlink > 0 AND i.parent <> d.parent
    LIMIT a_limit;
    RETURN QUERY
    WITH RECURSIVE reached (ino) AS (
        SELECT i.ino FROM inode i WHERE i.mode >> 12 = 4 AND (i.ino = 1 OR i.nlink = 0)
        UNION
        SELECT c.ino FROM reached r JOIN dentry d ON d.parent = r.ino
        JOIN inode c ON c.ino = d.ino AND c.mode >> 12 = 4
    )
    SELECT i.ino, NULL::bytea, 'no way from the root leads to this directory'
    FROM inode i LEFT JOIN reached r ON r.ino = i.ino
    WHERE i.mode >> 12 = 4 AND i.nlink > 0 AND i.ino <> 1 AND r.ino IS NULL
    LIMIT a_limit;
END $$;

-- I5: refs belong to files and end within them.
CREATE FUNCTION wrkfs.check_5(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT s.inode, NULL::bytea, CASE WHEN i.ino IS NULL
        THEN format('slice %s shown in what is no regular file', s.slice_id)
        ELSE format('slice %s shown up to %s of %s bytes', s.slice_id,
            s.pos::numeric + s.length, i.size) END
    FROM slice s LEFT JOIN inode i ON i.ino = s.inode AND i.mode >> 12 = 8
    WHERE i.ino IS NULL OR s.pos::numeric + s.length > i.size
    LIMIT a_limit;
END $$;

-- I6: refs lie within one chunk and within their slice, and have their checksums.
CREATE FUNCTION wrkfs.check_6(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT s.inode, NULL::bytea,
        format('slice %s of %s bytes: [%s, +%s) shown at %s of chunk %s, %s bytes of checksums',
            s.slice_id, s.size, s.off, s.length, s.pos, s.chunk, octet_length(s.checksums))
    FROM slice s
    WHERE s.pos < 0 OR s.off < 0 OR s.length < 1 OR s.slice_id < 1
        OR s.off::numeric + s.length > s.size
        OR s.chunk <> s.pos >> 26
        OR (s.pos::numeric + s.length - 1) >= (s.chunk::numeric + 1) * 67108864
        OR octet_length(s.checksums) <> CASE WHEN s.is_inline THEN 0
            ELSE 4 * ceil(s.size::numeric / 131072) END
    LIMIT a_limit;
END $$;

-- I7: inline slices and their bytes.
CREATE FUNCTION wrkfs.check_7(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT s.inode, NULL::bytea, format('inline slice %s of %s bytes has %s', s.slice_id, s.size,
        coalesce(octet_length(n.data)::text, 'none'))
    FROM slice s LEFT JOIN inline n ON n.slice_id = s.slice_id
    WHERE s.is_inline AND octet_length(n.data) IS DISTINCT FROM s.size
    UNION ALL
    SELECT s.inode, NULL::bytea, format('slice %s stands in `inline` and in the store', s.slice_id)
    FROM slice s JOIN inline n ON n.slice_id = s.slice_id WHERE NOT s.is_inline
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('bytes of slice %s, which no file shows', n.slice_id)
    FROM inline n WHERE NOT EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = n.slice_id)
    LIMIT a_limit;
END $$;

-- I8: slices that wait for deletion are not visible in any file.
CREATE FUNCTION wrkfs.check_8(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT s.inode, NULL::bytea, format('slice %s is shown, but waits for deletion', s.slice_id)
    FROM deleted d JOIN slice s ON s.slice_id = d.slice_id
    LIMIT a_limit;
END $$;

-- I9: symbolic links and their targets.
CREATE FUNCTION wrkfs.check_9(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT i.ino, NULL::bytea, format('symbolic link of %s bytes has a target of %s', i.size,
        coalesce(octet_length(l.target)::text, 'none'))
    FROM inode i LEFT JOIN symlink l ON l.ino = i.ino
    WHERE i.mode >> 12 = 10 AND octet_length(l.target) IS DISTINCT FROM i.size
    UNION ALL
    SELECT l.ino, NULL::bytea, 'target of what is no symbolic link'
    FROM symlink l LEFT JOIN inode i ON i.ino = l.ino AND i.mode >> 12 = 10
    WHERE i.ino IS NULL
    LIMIT a_limit;
END $$;

-- I10: booked usage and actual usage.
CREATE FUNCTION wrkfs.check_10(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT 0::bigint, NULL::bytea, format('use is %s bytes in %s inodes; booked are %s in %s',
        t.bytes, t.inodes, b.bytes, b.inodes)
    FROM wrkfs.true_use() t, wrkfs.booked_use() b
    WHERE b.bytes IS DISTINCT FROM t.bytes OR b.inodes IS DISTINCT FROM t.inodes
    LIMIT a_limit;
END $$;

-- I11: slots of live sessions.
CREATE FUNCTION wrkfs.check_11(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT 0::bigint, NULL::bytea, format('session %s is alive and has no slots', s.session_id)
    FROM session s WHERE s.fenced_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM op_result o WHERE o.session_id = s.session_id)
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('slot %s of session %s, which is gone or fenced', o.slot,
        o.session_id)
    FROM op_result o LEFT JOIN session s
        ON s.session_id = o.session_id AND s.fenced_at IS NULL AND s.epoch = o.epoch
    WHERE s.session_id IS NULL
    LIMIT a_limit;
END $$;

-- I12: values in the ranges that schema.sql defines.
CREATE FUNCTION wrkfs.check_12(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT i.ino, NULL::bytea, format(
        'impossible attributes: mode %s, nlink %s, owner %s:%s, device %s, size %s, version %s',
        i.mode, i.nlink, i.uid, i.gid, i.rdev, i.size, i.version)
    FROM inode i
    WHERE i.ino < 1 OR i.mode >> 12 NOT IN (1, 2, 4, 6, 8, 10, 12) OR i.nlink < 0
        OR i.uid NOT BETWEEN 0 AND 4294967295 OR i.gid NOT BETWEEN 0 AND 4294967295
        OR i.size < 0 OR i.version < 0 OR i.parent < 0 OR i.rdev < 0
        OR i.mode >> 12 NOT IN (8, 10) AND i.size <> 0
        OR i.holes NOT BETWEEN 0 AND CASE WHEN i.mode >> 12 = 8 THEN i.size ELSE 0 END
    UNION ALL
    SELECT i.ino, d.name, format('parent %s, but its entry stands in %s', i.parent, d.parent)
    FROM dentry d JOIN inode i ON i.ino = d.ino
    WHERE i.mode >> 12 <> 4 AND i.nlink = 1 AND i.parent NOT IN (0, d.parent)
    UNION ALL
    SELECT d.parent, d.name, format('impossible entry of inode %s, cookie %s', d.ino, d.cookie)
    FROM dentry d
    WHERE octet_length(d.name) NOT BETWEEN 1 AND 255 OR d.cookie < 1
        OR position('\x2f'::bytea IN d.name) > 0 OR position('\x00'::bytea IN d.name) > 0
        OR d.name IN ('\x2e'::bytea, '\x2e2e'::bytea)
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('counter %s stands at %s, numbers up to %s are in use',
        c.kind, c.next, u.last)
    FROM counter c JOIN (
        SELECT 'id' AS kind, max(i.ino) AS last FROM inode i WHERE NOT wrkfs.is_read_only(i.ino)
        UNION ALL SELECT 'id', max(d.cookie) FROM dentry d WHERE NOT wrkfs.is_read_only(d.cookie)
        UNION ALL SELECT 'snapshot', max(i.ino) FROM inode i
        UNION ALL SELECT 'session', max(s.session_id) FROM session s) u ON u.kind = c.kind
    WHERE c.next <= u.last
    UNION ALL
    SELECT i.ino, NULL::bytea, format('%s of %s bytes in holes; refs cover %s', i.holes, i.size,
        coalesce(v.bytes, 0))
    FROM inode i LEFT JOIN wrkfs.all_covered() v ON v.ino = i.ino
    WHERE i.mode >> 12 = 8 AND i.size::numeric - i.holes <> coalesce(v.bytes, 0)
    LIMIT a_limit;
END $$;

-- I13: no row refers to an inode or session that does not exist.
CREATE FUNCTION wrkfs.check_13(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT x.ino, NULL::bytea, 'extended attributes of an inode that is gone'
    FROM xattr x LEFT JOIN inode i ON i.ino = x.ino WHERE i.ino IS NULL GROUP BY x.ino
    UNION ALL
    SELECT h.ino, NULL::bytea, format('held by session %s, but gone', h.session_id)
    FROM sustained h LEFT JOIN inode i ON i.ino = h.ino WHERE i.ino IS NULL
    UNION ALL
    SELECT h.ino, NULL::bytea, format('held by session %s, which is gone', h.session_id)
    FROM sustained h LEFT JOIN session s ON s.session_id = h.session_id
    WHERE s.session_id IS NULL
    UNION ALL
    SELECT t.ino, t.name, 'kept in the trash, but gone'
    FROM trash t LEFT JOIN inode i ON i.ino = t.ino WHERE i.ino IS NULL
    UNION ALL
    SELECT l.ino, l.name, CASE WHEN i.ino IS NULL THEN 'a removed name of an inode that is gone'
        ELSE 'a removed name of a directory, beside others' END
    FROM removed_link l LEFT JOIN inode i ON i.ino = l.ino
    WHERE i.ino IS NULL OR i.mode >> 12 = 4
    LIMIT a_limit;
END $$;

-- I14: inodes in the trash have one row there, with their last place.
CREATE FUNCTION wrkfs.check_14(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT t.ino, t.name, format('in the trash from directory %s; nlink %s, parent %s', t.parent,
        i.nlink, i.parent)
    FROM trash t JOIN inode i ON i.ino = t.ino WHERE i.nlink <> 0 OR i.parent <> t.parent
    UNION ALL
    SELECT t.ino, NULL::bytea, format('%s times in the trash', count(*))
    FROM trash t GROUP BY t.ino HAVING count(*) > 1
    UNION ALL
    SELECT i.ino, NULL::bytea, format('removed from directory %s, and not in the trash', i.parent)
    FROM inode i WHERE i.nlink = 0 AND i.parent <> 0
        AND NOT EXISTS (SELECT 1 FROM trash t WHERE t.ino = i.ino)
    LIMIT a_limit;
END $$;

-- I15: the bytes that the rows of the trash state.
CREATE FUNCTION wrkfs.check_15(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT f.ino, f.name, format('%s bytes in the trash, %s are booked', f.kept, f.bytes)
    FROM (SELECT t.ino, t.name, t.bytes, CASE WHEN i.mode >> 12 = 8 AND NOT EXISTS (
              SELECT 1 FROM sustained s WHERE s.ino = t.ino)
              THEN i.size::numeric - i.holes - i.borrowed ELSE 0 END AS kept
          FROM trash t JOIN inode i ON i.ino = t.ino) f
    WHERE f.bytes <> f.kept
    LIMIT a_limit;
END $$;

-- I16: slice ids.
CREATE FUNCTION wrkfs.check_16(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT u.inode, NULL::bytea, format('slice id %s was never given; the next is %s', u.slice_id,
        c.next)
    FROM (SELECT s.inode, s.slice_id FROM slice s
          UNION ALL SELECT 0, n.slice_id FROM inline n
          UNION ALL SELECT 0, d.slice_id FROM deleted d) u
    JOIN counter c ON c.kind = 'slice'
    WHERE u.slice_id >= c.next OR u.slice_id < 1
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('slice ids from %s on: %s given twice', r.first, r.count)
    FROM (SELECT g.first, g.count,
              max(g.first::numeric + g.count) OVER (
                  ORDER BY g.first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
          FROM slice_range g) r
    WHERE r.first < r.reached
    LIMIT a_limit;
END $$;

-- I17: snapshots, and the numbers of their inodes.
CREATE FUNCTION wrkfs.check_17(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT s.ino, s.name, 'a snapshot that has no entry in `.snapshots`'
    FROM snapshot s LEFT JOIN dentry d
        ON d.parent = wrkfs.snapshots_ino() AND d.name = s.name AND d.ino = s.ino
    WHERE d.ino IS NULL
    UNION ALL
    SELECT d.ino, d.name, 'an entry of `.snapshots` that is no snapshot'
    FROM dentry d LEFT JOIN snapshot s ON s.name = d.name
    WHERE d.parent = wrkfs.snapshots_ino() AND s.name IS NULL
    UNION ALL
    SELECT d.parent, d.name, format('names inode %s, across the border of a snapshot', d.ino)
    FROM dentry d
    WHERE wrkfs.is_read_only(d.ino) <> wrkfs.is_read_only(d.parent)
        AND NOT (d.parent = 1 AND d.name = '.snapshots'::bytea AND d.ino = wrkfs.snapshots_ino())
    LIMIT a_limit;
END $$;

-- I18: borrowed bytes, and the slices that count by themselves.
CREATE FUNCTION wrkfs.check_18(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT i.ino, NULL::bytea, format('%s bytes borrowed; refs say %s', i.borrowed,
        coalesce(b.bytes, 0))
    FROM inode i LEFT JOIN wrkfs.all_borrowed() b ON b.ino = i.ino
    WHERE i.borrowed <> coalesce(b.bytes, 0)
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('slice %s counts %s bytes as shared; refs say %s',
        coalesce(h.slice_id, t.slice_id), coalesce(h.bytes, 0), coalesce(t.bytes, 0))
    FROM shared_slice h FULL JOIN wrkfs.true_shares() t ON t.slice_id = h.slice_id
    WHERE h.bytes IS DISTINCT FROM t.bytes
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('%s bytes booked as shared, %s are', u.shared, t.bytes)
    FROM usage u, (SELECT coalesce(sum(h.bytes), 0) AS bytes FROM shared_slice h) t
    WHERE u.shared <> t.bytes
    LIMIT a_limit;
END $$;

-- I19: delegations.
CREATE FUNCTION wrkfs.check_19(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT g.ino, NULL::bytea, format('delegated to session %s, but no directory with a name',
        g.session_id)
    FROM delegation g LEFT JOIN inode i ON i.ino = g.ino AND i.mode >> 12 = 4 AND i.nlink > 0
    WHERE i.ino IS NULL
    UNION ALL
    SELECT g.ino, NULL::bytea, format('delegated to session %s, which is gone or fenced',
        g.session_id)
    FROM delegation g LEFT JOIN session s ON s.session_id = g.session_id AND s.fenced_at IS NULL
    WHERE s.session_id IS NULL
    LIMIT a_limit;
END $$;

-- I20: reservations of room in the quota.
CREATE FUNCTION wrkfs.check_20(a_limit integer) RETURNS SETOF wrkfs.finding
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT 0::bigint, NULL::bytea, format('session %s reserves %s bytes and %s inodes',
        r.session_id, r.bytes, r.inodes)
    FROM reservation r WHERE r.bytes < 0 OR r.inodes < 0
    UNION ALL
    SELECT 0::bigint, NULL::bytea, format('a reservation of session %s, which is gone or fenced',
        r.session_id)
    FROM reservation r LEFT JOIN session s ON s.session_id = r.session_id AND s.fenced_at IS NULL
    WHERE s.session_id IS NULL
    LIMIT a_limit;
END $$;

-- Returns the files with borrowed refs, and the bytes that only those cover.
CREATE FUNCTION wrkfs.all_borrowed() RETURNS TABLE (ino bigint, bytes numeric)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT c.inode, sum(CASE WHEN c.own THEN -1 ELSE 1 END * (upper(c.part)::numeric - lower(c.part)))
    FROM (SELECT s.inode, false AS own,
              unnest(range_agg(int8range(s.pos, s.pos + s.length))) AS part
          FROM slice s WHERE wrkfs.is_possible(s.pos, s.length) GROUP BY s.inode
          HAVING bool_or(s.borrowed)
          UNION ALL
          SELECT s.inode, true,
              unnest(range_agg(int8range(s.pos, s.pos + s.length)) FILTER (WHERE NOT s.borrowed))
          FROM slice s WHERE wrkfs.is_possible(s.pos, s.length) GROUP BY s.inode
          HAVING bool_or(s.borrowed)) c
    GROUP BY c.inode;
END $$;

-- Returns true if a ref is no impossible one (I6).
CREATE FUNCTION wrkfs.is_possible(a_pos bigint, a_length bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT a_pos >= 0 AND a_length > 0 AND a_pos <= 9223372036854775807 - a_length
$$;

-- Returns the slices whose refs are all borrowed, and their sizes.
CREATE FUNCTION wrkfs.true_shares() RETURNS TABLE (slice_id bigint, bytes bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT s.slice_id, min(s.size) FROM slice s
        GROUP BY s.slice_id HAVING bool_and(s.borrowed);
END $$;

-- Returns true if an inode without a name has a holder or is in the trash.
CREATE FUNCTION wrkfs.is_held(a_ino bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM sustained s WHERE s.ino = a_ino)
        OR EXISTS (SELECT 1 FROM trash t WHERE t.ino = a_ino);
END $$;

-- Returns the bytes of each file that refs cover; impossible refs cover nothing (I5, I6 report them).
CREATE FUNCTION wrkfs.all_covered() RETURNS TABLE (ino bigint, bytes numeric)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT c.inode, sum(upper(c.part)::numeric - lower(c.part))
    FROM (SELECT s.inode, unnest(range_agg(int8range(s.pos, s.pos + s.length))) AS part
          FROM slice s
          WHERE wrkfs.is_possible(s.pos, s.length)
          GROUP BY s.inode) c
    GROUP BY c.inode;
END $$;

-- Returns the usage according to the inodes. Inodes that only the trash keeps do not count.
CREATE FUNCTION wrkfs.true_use(OUT bytes numeric, OUT inodes numeric)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(sum(i.size::numeric - i.holes - i.borrowed) FILTER (WHERE i.mode >> 12 = 8), 0),
        count(*)
    INTO bytes, inodes FROM inode i
    WHERE i.ino <> 1
        AND (i.nlink > 0 OR EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino));
    bytes := bytes + (SELECT coalesce(sum(h.bytes), 0) FROM shared_slice h);
END $$;

-- Returns the booked usage.
CREATE FUNCTION wrkfs.booked_use(OUT bytes numeric, OUT inodes numeric)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT sum(b.bytes), sum(b.inodes) INTO bytes, inodes
    FROM (SELECT u.bytes + u.shared AS bytes, u.inodes FROM usage u
          UNION ALL SELECT o.bytes, o.inodes FROM op_result o) b;
END $$;
