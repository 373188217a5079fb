-- Clones and snapshots of trees. Both share the slices of their source (1_sharing.sql): no byte is
-- copied. A call writes the rows of the new tree in a few statements, and no other change of the
-- volume runs meanwhile (`pause_changes`). Holders of leases on the source need no recall, because the
-- source does not change. Holders of delegations do: they first send what they decided.
--
-- A clone has inode numbers of counter 'id', like every other tree. A snapshot has numbers of counter
-- 'snapshot', from 2^52 on: every function that changes an inode refuses these with EROFS. Its names
-- are in directory `.snapshots` of the root, which the first snapshot creates. That directory has no
-- place in listings of the root, so that no walk of the drive visits every file once per snapshot.
--
-- A clone takes about 13 us of processor time for each file: 2 to read the names, 4 to write the inode, 2
-- for the name, 5 for the ref. PostgreSQL's insertion into seven indexes is most of it.

-- The rows of a tree, one element for each name, parents before children. `above`: position of the
-- parent, 0 for the top. `first`: position of the first name of the same inode. `names`: number of names
-- of the inode within the tree. errno 7: the tree is too large or too deep.
CREATE TYPE wrkfs.copied_tree AS (
    errno integer, above integer[], name bytea[], cookie bigint[], ino bigint[], kind integer[],
    first integer[], names integer[], subdirectories integer, has_links boolean
);

-- Returns the rows of the tree below an inode, without the directory `.snapshots`. a_limit: the
-- maximum number of names. Hostile rows may be a cycle, so the depth is limited too.
CREATE FUNCTION wrkfs.copy_read_tree(a_ino bigint, a_limit integer) RETURNS wrkfs.copied_tree
LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.copied_tree;
    v record;
    v_dirs bigint[];
    v_places integer[] := '{1}';
    v_count integer := 1;
BEGIN
    SELECT 0, '{0}', '{\x}', '{0}', ARRAY[i.ino], ARRAY[i.mode >> 12], '{1}', '{1}', 0, false INTO r
    FROM inode i WHERE i.ino = a_ino AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := 2; RETURN r; END IF;
    v_dirs := CASE WHEN r.kind[1] = 4 THEN r.ino ELSE '{}' END;
    FOR depth IN 1..2049 LOOP
        EXIT WHEN coalesce(cardinality(v_dirs), 0) = 0;
        IF depth > 2048 THEN r.errno := 7; RETURN r; END IF;
        SELECT count(*)::integer AS count, array_agg(e.place) AS above, array_agg(e.name) AS name,
            array_agg(e.cookie) AS cookie, array_agg(e.ino) AS ino, array_agg(e.kind) AS kind,
            bool_or(e.kind <> 4 AND e.nlink > 1) AS has_links INTO v
        FROM (SELECT p.place, d.name, d.cookie, d.ino, i.mode >> 12 AS kind, i.nlink
              FROM unnest(v_dirs, v_places) AS p (ino, place)
              JOIN dentry d ON d.parent = p.ino JOIN inode i ON i.ino = d.ino
              WHERE d.ino <> wrkfs.snapshots_ino() LIMIT a_limit + 1) e;
        EXIT WHEN v.count = 0;
        IF v_count + v.count > a_limit THEN r.errno := 7; RETURN r; END IF;
        r.above := r.above || v.above;
        r.name := r.name || v.name;
        r.cookie := r.cookie || v.cookie;
        r.ino := r.ino || v.ino;
        r.kind := r.kind || v.kind;
        r.has_links := r.has_links OR v.has_links;
        SELECT array_agg(g.ino ORDER BY g.n), array_agg(v_count + g.n::integer ORDER BY g.n)
        INTO v_dirs, v_places
        FROM unnest(v.ino, v.kind) WITH ORDINALITY AS g (ino, kind, n) WHERE g.kind = 4;
        IF depth = 1 THEN r.subdirectories := coalesce(cardinality(v_dirs), 0); END IF;
        v_count := v_count + v.count;
    END LOOP;
    IF r.has_links THEN
        SELECT array_agg(CASE WHEN g.kind = 4 THEN g.n ELSE g.first END ORDER BY g.n),
            array_agg(CASE WHEN g.kind = 4 THEN 1 ELSE g.names END ORDER BY g.n)
        INTO r.first, r.names
        FROM (SELECT t.n::integer AS n, t.kind, min(t.n) OVER same::integer AS first,
                  count(*) OVER same::integer AS names
              FROM unnest(r.ino, r.kind) WITH ORDINALITY AS t (ino, kind, n)
              WINDOW same AS (PARTITION BY t.ino)) g;
    ELSE
        r.first := ARRAY(SELECT n FROM generate_series(1, v_count) AS n);
        r.names := array_fill(1, ARRAY[v_count]);
    END IF;
    RETURN r;
END $$;

-- Returns true if another session waits to copy a tree (`copy_recall_tree`). No new delegation begins then.
CREATE FUNCTION wrkfs.is_copying(a_session bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM recall c WHERE c.ino = 0 AND c.session_id <> a_session
        AND c.until > clock_timestamp();
    RETURN FOUND;
END $$;

-- Returns true if other sessions have delegations of directories of a tree. It asks them to send their
-- changes, up to 500 directories at a time. For a second no session gets another delegation: otherwise
-- a session that creates directories all the time would delay the copy forever. The row of inode 0
-- stands for all directories.
CREATE FUNCTION wrkfs.copy_recall_tree(a_session bigint, a_tree wrkfs.copied_tree) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_inos bigint[];
BEGIN
    PERFORM 1 FROM delegation d WHERE d.session_id <> a_session LIMIT 1;
    IF NOT FOUND THEN RETURN false; END IF;
    v_inos := ARRAY(
        SELECT d.ino FROM unnest(a_tree.ino, a_tree.kind) AS t (ino, kind)
        JOIN delegation d ON d.ino = t.ino
        WHERE t.kind = 4 AND d.session_id <> a_session LIMIT 500);
    IF cardinality(v_inos) = 0 THEN RETURN false; END IF;
    FOR n IN 0..4 LOOP
        PERFORM wrkfs.notify_holders(a_session, v_inos[n * 100 + 1 : n * 100 + 100]);
    END LOOP;
    INSERT INTO recall AS c (ino, session_id, until)
    VALUES (0, a_session, clock_timestamp() + interval '1 s')
    ON CONFLICT (ino, session_id) DO UPDATE SET until = excluded.until;
    RETURN true;
END $$;

-- Writes a copy of a tree. The new inode of position n has number a_first + n - 1. Returns the bytes of
-- its files. a_parent: the directory of its top; a_ctime: the ctime of all inodes, NULL: that of the
-- source. The caller writes the name of the top.
CREATE FUNCTION wrkfs.copy_write_tree(
    a_tree wrkfs.copied_tree, a_first bigint, a_parent bigint, a_ctime bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_bytes bigint;
BEGIN
    WITH copied AS (
        INSERT INTO inode (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version,
            parent, holes, borrowed)
        SELECT a_first + t.n - 1, i.mode,
            CASE WHEN t.n = 1 AND t.kind = 4 THEN 2 + a_tree.subdirectories
                WHEN t.kind = 4 THEN i.nlink ELSE t.names END,
            i.uid, i.gid, i.rdev, i.size, i.atime, i.mtime, coalesce(a_ctime, i.ctime), i.version,
            CASE WHEN t.names > 1 THEN 0 WHEN t.above = 0 THEN a_parent
                ELSE a_first + t.above - 1 END,
            i.holes, CASE WHEN t.kind = 8 THEN i.size - i.holes ELSE 0 END
        FROM unnest(a_tree.ino, a_tree.kind, a_tree.above, a_tree.first, a_tree.names)
            WITH ORDINALITY AS t (ino, kind, above, first, names, n)
        JOIN inode i ON i.ino = t.ino
        WHERE t.first = t.n
        RETURNING borrowed
    )
    SELECT coalesce(sum(c.borrowed), 0) INTO v_bytes FROM copied c;
    INSERT INTO dentry (parent, name, ino, cookie)
    SELECT a_first + t.above - 1, t.name, a_first + t.first - 1, t.cookie
    FROM unnest(a_tree.above, a_tree.name, a_tree.first, a_tree.cookie)
        AS t (above, name, first, cookie)
    WHERE t.above > 0;
    INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums, is_inline,
        borrowed)
    SELECT a_first + t.n - 1, s.chunk, s.ord, s.pos, s.slice_id, s.size, s.off, s.length,
        s.checksums, s.is_inline, true
    FROM unnest(a_tree.ino, a_tree.kind, a_tree.first)
        WITH ORDINALITY AS t (ino, kind, first, n)
    JOIN slice s ON s.inode = t.ino
    WHERE t.first = t.n AND t.kind = 8;
    IF 10 = ANY (a_tree.kind) THEN
        INSERT INTO symlink (ino, target)
        SELECT a_first + t.n - 1, l.target
        FROM unnest(a_tree.ino, a_tree.kind, a_tree.first)
            WITH ORDINALITY AS t (ino, kind, first, n)
        JOIN symlink l ON l.ino = t.ino
        WHERE t.first = t.n AND t.kind = 10;
    END IF;
    PERFORM 1 FROM xattr x LIMIT 1;
    IF FOUND THEN
        INSERT INTO xattr (ino, name, value)
        SELECT a_first + t.n - 1, x.name, x.value
        FROM unnest(a_tree.ino, a_tree.first) WITH ORDINALITY AS t (ino, first, n)
        JOIN xattr x ON x.ino = t.ino
        WHERE t.first = t.n;
    END IF;
    RETURN v_bytes;
END $$;

-- Returns the number of inodes of a tree.
CREATE FUNCTION wrkfs.count_inodes(a_tree wrkfs.copied_tree) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF NOT a_tree.has_links THEN RETURN cardinality(a_tree.ino); END IF;
    RETURN (SELECT count(*) FROM unnest(a_tree.first) WITH ORDINALITY AS t (first, n)
            WHERE t.first = t.n);
END $$;

-- Copies the tree below a_source to a free name, durably. With a_replace the name may exist: what it
-- names is removed in the same step, as by remove_tree. flag: a removed tree waits for `purge`.
-- a_limit: as in copy_read_tree.
CREATE FUNCTION wrkfs.clone(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_source bigint, a_parent bigint, a_name bytea, a_replace boolean, a_limit integer
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
    v_tree wrkfs.copied_tree;
    v_inodes bigint;
    v_first bigint;
    v_now bigint;
    v_target bigint;
    v_is_dir boolean := false;
    v_freed wrkfs.freed := (0, 0);
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM wrkfs.pause_changes();
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_read_only(a_parent) THEN r.errno := 30; RETURN r; END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_source, a_parent]) THEN r.errno := -2; RETURN r; END IF;
    SELECT d.ino, i.mode >> 12 = 4 INTO v_target, v_is_dir
    FROM dentry d JOIN inode i ON i.ino = d.ino WHERE d.parent = a_parent AND d.name = a_name;
    IF v_target IS NOT NULL AND NOT a_replace THEN r.errno := 17; RETURN r; END IF;
    IF wrkfs.is_read_only(v_target) THEN r.errno := 30; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, v_target]);
    PERFORM 1 FROM inode i WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    v_tree := wrkfs.copy_read_tree(a_source, a_limit);
    IF v_tree.errno <> 0 THEN r.errno := v_tree.errno; RETURN r; END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[v_target])
        OR wrkfs.copy_recall_tree(a_session, v_tree) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_inodes := wrkfs.count_inodes(v_tree);
    IF wrkfs.over_quota(0, v_inodes) THEN r.errno := 122; RETURN r; END IF;
    IF wrkfs.recalls(a_session, a_parent || CASE WHEN v_is_dir THEN ARRAY[v_target] ELSE '{}' END)
    THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_now := wrkfs.now_ns();
    DELETE FROM recall c WHERE c.ino = 0 AND c.session_id = a_session;
    UPDATE counter c SET next = c.next + cardinality(v_tree.ino) WHERE c.kind = 'id'
    RETURNING c.next - cardinality(v_tree.ino) INTO v_first;
    PERFORM wrkfs.copy_write_tree(v_tree, v_first, a_parent, v_now);
    IF v_target IS NOT NULL THEN
        DELETE FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
        v_freed := wrkfs.detach(
            a_session, a_parent, a_name, v_target, v_is_dir, v_now, NULL);
    END IF;
    INSERT INTO dentry (parent, name, ino, cookie) VALUES (a_parent, a_name, v_first, v_first);
    UPDATE inode i SET mtime = v_now, ctime = v_now,
        nlink = i.nlink + (v_tree.kind[1] = 4)::integer - coalesce(v_is_dir, false)::integer
    WHERE i.ino = a_parent;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, v_first, coalesce(v_is_dir, false),
        -v_freed.bytes, v_inodes - v_freed.inodes);
    SELECT 0, coalesce(v_is_dir, false), i.* INTO r FROM inode i WHERE i.ino = v_first;
    RETURN r;
END $$;

-- Copies the tree below a_source to a new snapshot, durably. a_path: the path of the source, which the
-- list of snapshots shows. a_most: the maximum number of snapshots (ENOSPC beyond). EBUSY: the root has
-- another entry of the name `.snapshots`.
CREATE FUNCTION wrkfs.create_snapshot(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_source bigint, a_name bytea, a_path bytea, a_limit integer, a_most integer
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
    v_home bigint := wrkfs.snapshots_ino();
    v_is_first boolean;
    v_tree wrkfs.copied_tree;
    v_inodes bigint;
    v_bytes bigint;
    v_first bigint;
    v_now bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM wrkfs.pause_changes();
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    PERFORM 1 FROM dentry d WHERE d.parent = 1 AND d.name = '.snapshots'::bytea AND d.ino <> v_home;
    r.errno := CASE WHEN wrkfs.is_read_only(a_source) THEN 22 WHEN FOUND THEN 16
        WHEN EXISTS (SELECT 1 FROM snapshot s WHERE s.name = a_name) THEN 17
        WHEN (SELECT count(*) FROM snapshot s) >= a_most THEN 28 ELSE 0 END;
    IF r.errno <> 0 THEN RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[1, v_home]);
    v_is_first := NOT EXISTS (SELECT 1 FROM inode i WHERE i.ino = v_home);
    v_tree := wrkfs.copy_read_tree(a_source, a_limit);
    IF v_tree.errno <> 0 THEN r.errno := v_tree.errno; RETURN r; END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_source] || CASE WHEN v_is_first THEN 1 END::bigint)
        OR wrkfs.copy_recall_tree(a_session, v_tree) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_inodes := wrkfs.count_inodes(v_tree);
    IF wrkfs.over_quota(0, v_inodes + v_is_first::integer) THEN r.errno := 122; RETURN r; END IF;
    IF wrkfs.recalls(a_session, CASE WHEN v_is_first THEN ARRAY[1::bigint] ELSE ARRAY[v_home] END)
    THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_now := wrkfs.now_ns();
    IF v_is_first THEN
        INSERT INTO inode (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version,
            parent)
        VALUES (v_home, 16749, 2, 0, 0, 0, 0, v_now, v_now, v_now, 0, 1);
        INSERT INTO dentry (parent, name, ino, cookie)
        VALUES (1, '.snapshots'::bytea, v_home, v_home);
        UPDATE inode i SET nlink = i.nlink + 1, ctime = v_now WHERE i.ino = 1;
    END IF;
    DELETE FROM recall c WHERE c.ino = 0 AND c.session_id = a_session;
    UPDATE counter c SET next = c.next + cardinality(v_tree.ino) WHERE c.kind = 'snapshot'
    RETURNING c.next - cardinality(v_tree.ino) INTO v_first;
    v_bytes := wrkfs.copy_write_tree(v_tree, v_first, v_home, NULL);
    INSERT INTO dentry (parent, name, ino, cookie) VALUES (v_home, a_name, v_first, v_first);
    UPDATE inode i SET mtime = v_now, ctime = v_now,
        nlink = i.nlink + (v_tree.kind[1] = 4)::integer
    WHERE i.ino = v_home;
    INSERT INTO snapshot (name, ino, path, created_at, inodes, bytes)
    VALUES (a_name, v_first, a_path, wrkfs.moment(v_now), v_inodes, v_bytes);
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, v_first, false, 0,
        v_inodes + v_is_first::integer);
    SELECT 0, false, i.* INTO r FROM inode i WHERE i.ino = v_first;
    RETURN r;
END $$;

-- Removes a snapshot. Its name disappears at once, and `purge` removes the rest: flag is true.
CREATE FUNCTION wrkfs.remove_snapshot(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_name bytea
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_home bigint := wrkfs.snapshots_ino();
    v_freed wrkfs.freed := (0, 0);
    v_now bigint;
    v_ino bigint;
    v_is_dir boolean;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    SELECT s.ino, i.mode >> 12 = 4 INTO v_ino, v_is_dir
    FROM snapshot s JOIN inode i ON i.ino = s.ino WHERE s.name = a_name;
    IF NOT FOUND THEN r.errno := 2; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[v_home, v_ino]);
    PERFORM 1 FROM snapshot s WHERE s.name = a_name AND s.ino = v_ino;
    IF NOT FOUND THEN r.errno := 11; RETURN r; END IF;
    IF wrkfs.recalls(a_session, CASE WHEN v_is_dir THEN ARRAY[v_home, v_ino]
        ELSE ARRAY[v_home] END) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    v_now := wrkfs.now_ns();
    DELETE FROM snapshot s WHERE s.name = a_name;
    DELETE FROM dentry d WHERE d.parent = v_home AND d.name = a_name;
    UPDATE inode i SET mtime = v_now, ctime = v_now, nlink = i.nlink - v_is_dir::integer
    WHERE i.ino = v_home;
    v_freed := wrkfs.detach(a_session, v_home, a_name, v_ino, v_is_dir, v_now, NULL);
    r.errno := 0;
    r.flag := v_is_dir;
    PERFORM wrkfs.op_end(
        a_session, a_slot, a_seq, 0, r.flag, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- Returns the snapshots in the order of their creation, up to a_limit.
CREATE FUNCTION wrkfs.list_snapshots(a_limit integer)
RETURNS TABLE (name bytea, ino bigint, path bytea, created_at timestamptz, inodes bigint, bytes bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT s.name, s.ino, s.path, s.created_at, s.inodes, s.bytes FROM snapshot s
        ORDER BY s.ino LIMIT a_limit;
END $$;
