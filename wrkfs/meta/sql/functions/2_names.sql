-- Names: lookup, creation and removal of entries. 3_rename.sql renames.

-- Returns the directory whose delegation to another session covers the answer to a lookup, or 0: the
-- directory itself, or the directory that has the name.
CREATE FUNCTION wrkfs.held_elsewhere(a_parent bigint, a_name bytea) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_held bigint;
BEGIN
    SELECT d.ino INTO v_held FROM delegation d
    WHERE d.session_id <> wrkfs.me() AND (d.ino = a_parent OR d.ino =
        (SELECT e.ino FROM dentry e WHERE e.parent = a_parent AND e.name = a_name))
    LIMIT 1;
    RETURN coalesce(v_held, 0);
END $$;

-- Returns the attributes of a name. errno -3: a delegation of another session covers them (as for all
-- reading functions), and ino is its directory.
CREATE FUNCTION wrkfs.lookup(a_parent bigint, a_name bytea) RETURNS wrkfs.reply
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.reply;
BEGIN
    r.ino := wrkfs.held_elsewhere(a_parent, a_name);
    IF r.ino <> 0 THEN r.errno := -3; RETURN r; END IF;
    SELECT 0, false, i.* INTO r FROM dentry d JOIN inode i ON i.ino = d.ino
    WHERE d.parent = a_parent AND d.name = a_name;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); END IF;
    RETURN r;
END $$;

-- Does the same for a session with a lease on the directory. flag: settled, also for a missing name.
CREATE FUNCTION wrkfs.find(a_parent bigint, a_name bytea) RETURNS wrkfs.reply
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.reply;
    v_held bigint;
BEGIN
    -- One statement, so that one snapshot has the entry and shows whether it is settled.
    SELECT CASE WHEN i.ino IS NULL THEN 2 ELSE 0 END,
        p.nlink > 0 AND wrkfs.settled(p.xmax) AND (i.ino IS NULL OR wrkfs.settled(i.xmax)),
        i.* INTO r
    FROM inode p LEFT JOIN dentry d ON d.parent = p.ino AND d.name = a_name
        LEFT JOIN inode i ON i.ino = d.ino
    WHERE p.ino = a_parent AND p.mode >> 12 = 4;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); r.flag := false; END IF;
    v_held := wrkfs.held_elsewhere(a_parent, a_name);
    IF v_held <> 0 THEN
        r := NULL;
        r.errno := -3;
        r.ino := v_held;
    END IF;
    RETURN r;
END $$;

-- Returns entries with a cookie beyond a_after, in the order of cookies. `.snapshots` is not listed, so
-- that no walk of the drive visits every file once per snapshot.
CREATE FUNCTION wrkfs.readdir(a_ino bigint, a_after bigint, a_limit integer)
RETURNS SETOF wrkfs.entry_reply LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.entry_reply;
    v_nlink integer;
    v_settled boolean;
BEGIN
    SELECT i.nlink, wrkfs.settled(i.xmax) INTO v_nlink, v_settled
    FROM inode i WHERE i.ino = a_ino AND i.mode >> 12 = 4;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, v_nlink) THEN
        r.errno := wrkfs.why_not(a_ino);
        RETURN NEXT r;
        RETURN;
    END IF;
    -- A delegation of the directory, or of directories in it, whose attributes are part of the answer.
    FOR r.ino IN
        SELECT d.ino FROM delegation d WHERE d.ino = a_ino AND d.session_id <> wrkfs.me()
        UNION ALL
        SELECT g.ino FROM (SELECT e.ino FROM dentry e WHERE e.parent = a_ino
            AND e.cookie > a_after ORDER BY e.cookie LIMIT a_limit) e
        JOIN delegation g ON g.ino = e.ino AND g.session_id <> wrkfs.me()
    LOOP
        r.errno := -3;
        RETURN NEXT r;
    END LOOP;
    IF r.errno = -3 THEN RETURN; END IF;
    RETURN QUERY SELECT 0, d.cookie, d.name, i.*, v_settled AND wrkfs.settled(i.xmax)
        FROM dentry d JOIN inode i ON i.ino = d.ino
        WHERE d.parent = a_ino AND d.cookie > a_after AND d.ino <> wrkfs.snapshots_ino()
        ORDER BY d.cookie LIMIT a_limit;
END $$;

-- Creates an inode and its name for a call that op_begin admitted, and holds it open on request: the
-- common part of create, mknod, mkdir and symlink. A setgid directory passes on its group, and the
-- bit to directories. flag is true. With errno 17, ino is the inode that has the name.
CREATE FUNCTION wrkfs.add_node(
    a_session bigint, a_slot integer, a_seq bigint, a_parent bigint, a_name bytea, a_ino bigint,
    a_mode integer, a_uid bigint, a_gid bigint, a_rdev bigint, a_size bigint, a_open boolean
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_now bigint := wrkfs.now_ns();
    v_is_dir integer := (a_mode >> 12 = 4)::integer;
    v_mode integer;
    v_gid bigint;
BEGIN
    IF wrkfs.is_read_only(a_parent) THEN
        SELECT d.ino INTO r.ino FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
        r.errno := CASE WHEN FOUND THEN 17 ELSE 30 END;
        RETURN r;
    END IF;
    -- From here on concurrent creations in this directory wait for each other. If the name exists, the
    -- call locks nothing: `create` may lock the inode of the name, in the order of ino.
    SELECT i.mode, i.gid INTO v_mode, v_gid FROM inode i
    WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0
        AND NOT EXISTS (SELECT 1 FROM dentry d WHERE d.parent = a_parent AND d.name = a_name)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        SELECT d.ino INTO r.ino FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
        r.errno := CASE WHEN FOUND THEN 17 ELSE wrkfs.why_not_add(a_parent) END;
        RETURN r;
    END IF;
    -- The insertion of the name makes all checks. That saves queries of quota and leases and a PERFORM
    -- of op_end: 40 us of a create's 410.
    INSERT INTO dentry (parent, name, ino, cookie)
    SELECT a_parent, a_name, a_ino, a_ino
    WHERE NOT EXISTS (SELECT 1 FROM lease l
            WHERE l.ino = a_parent AND l.session_id <> a_session AND l.ino > 0)
        AND (NOT EXISTS (SELECT 1 FROM volume v
                WHERE v.bytes_limit IS NOT NULL OR v.inodes_limit IS NOT NULL)
            OR NOT wrkfs.over_quota(0, 1))
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- With neither error, another call created the name while this call waited for the directory.
        r.errno := CASE WHEN wrkfs.over_quota(0, 1) THEN 122
            WHEN wrkfs.recalls(a_session, ARRAY[a_parent]) THEN -2 ELSE 11 END;
        RETURN r;
    END IF;
    UPDATE op_result o SET op_seq = a_seq, ino = a_ino, flag = true, inodes = o.inodes + 1
    WHERE o.session_id = a_session AND o.slot = a_slot;
    UPDATE inode i SET mtime = v_now, ctime = v_now, nlink = i.nlink + v_is_dir
    WHERE i.ino = a_parent;
    IF a_open THEN INSERT INTO sustained (ino, session_id) VALUES (a_ino, a_session); END IF;
    INSERT INTO inode AS i
    VALUES (a_ino,
        CASE WHEN v_mode & 1024 <> 0 AND v_is_dir = 1 THEN a_mode | 1024 ELSE a_mode END,
        1 + v_is_dir, a_uid, CASE WHEN v_mode & 1024 <> 0 THEN v_gid ELSE a_gid END,
        a_rdev, a_size, v_now, v_now, v_now, 0, a_parent)
    RETURNING 0, true, i.* INTO r;
    RETURN r;
END $$;

-- Returns the reason why `add_node` found neither the directory nor the name. The quota comes first.
CREATE FUNCTION wrkfs.why_not_add(a_parent bigint) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF wrkfs.over_quota(0, 1) THEN RETURN 122; END IF;
    -- A directory. The name existed at the first query, and was removed before the second.
    PERFORM 1 FROM inode i WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    RETURN CASE WHEN FOUND THEN 11 ELSE wrkfs.why_not(a_parent) END;
END $$;

-- Creates a regular file, or opens an existing one, and sustains it; durably on request. flag: the
-- file is new.
CREATE FUNCTION wrkfs.create(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_parent bigint, a_name bytea, a_ino bigint, a_mode integer, a_uid bigint, a_gid bigint,
    a_exclusive boolean, a_durable boolean
) RETURNS wrkfs.map_reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.map_reply;
    v_setting text;
    v_state integer;
    v_ino bigint;
BEGIN
    IF a_durable THEN v_setting := set_config('synchronous_commit', 'on', true); END IF;
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat_map(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent]) THEN r.errno := -2; RETURN r; END IF;
    r := wrkfs.add_node(a_session, a_slot, a_seq, a_parent, a_name, a_ino, a_mode, a_uid, a_gid,
        0, 0, true);
    IF r.errno <> 17 OR a_exclusive THEN RETURN r; END IF;
    v_ino := r.ino;
    r.ino := NULL;
    r.errno := wrkfs.sustain(a_session, v_ino);
    -- If the file has gone, it was replaced or removed after its name was read.
    IF r.errno = 2 THEN r.errno := 11; END IF;
    IF r.errno <> 0 THEN RETURN r; END IF;
    v_state := wrkfs.op_end(a_session, a_slot, a_seq, v_ino, false, 0, 0);
    RETURN wrkfs.file_map(v_ino);
END $$;

-- Creates a directory, symbolic link (a_target), fifo, socket or regular file under a free name.
CREATE FUNCTION wrkfs.make(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_parent bigint, a_name bytea, a_ino bigint, a_mode integer, a_uid bigint, a_gid bigint,
    a_rdev bigint, a_target bytea, a_delegate boolean DEFAULT true
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent])
        OR a_mode >> 12 = 4 AND wrkfs.is_copying(a_session) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    r := wrkfs.add_node(a_session, a_slot, a_seq, a_parent, a_name, a_ino, a_mode, a_uid, a_gid,
        a_rdev, coalesce(octet_length(a_target), 0), false);
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF a_target IS NOT NULL THEN
        INSERT INTO symlink (ino, target) VALUES (a_ino, a_target);
    ELSIF a_mode >> 12 = 4 THEN
        -- The session that creates a directory knows that it is empty.
        INSERT INTO lease (ino, session_id, taken_at, number)
        SELECT a_ino, a_session, clock_timestamp(), a_seq FROM session s
        WHERE s.session_id = a_session AND s.channel IS NOT NULL
            AND s.expires_at > clock_timestamp();
        IF FOUND AND a_delegate THEN
            INSERT INTO delegation (ino, session_id)
            SELECT a_ino, a_session FROM session s
            WHERE s.session_id = a_session AND s.delegates;
        END IF;
    END IF;
    RETURN r;
END $$;

-- Creates another name for a non-directory.
CREATE FUNCTION wrkfs.link(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_parent bigint, a_name bytea, a_cookie bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_now bigint;
    v_mode integer;
    v_nlink integer;
    v_home bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent, a_ino]) THEN r.errno := -2; RETURN r; END IF;
    IF wrkfs.is_read_only(a_parent) THEN r.errno := 30; RETURN r; END IF;
    IF wrkfs.is_read_only(a_ino) THEN r.errno := 18; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, a_ino]);
    PERFORM 1 FROM inode i WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    PERFORM 1 FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
    IF FOUND THEN r.errno := 17; RETURN r; END IF;
    SELECT i.mode, i.nlink, i.parent INTO v_mode, v_nlink, v_home
    FROM inode i WHERE i.ino = a_ino;
    r.errno := CASE WHEN NOT FOUND THEN 2 WHEN v_mode >> 12 = 4 THEN 1 WHEN v_nlink = 0 THEN 2
        WHEN v_nlink >= 65000 THEN 31 ELSE 0 END;
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF wrkfs.recalls(a_session, ARRAY[a_parent, v_home]) THEN r.errno := -2; RETURN r; END IF;
    v_now := wrkfs.now_ns();
    INSERT INTO dentry (parent, name, ino, cookie) VALUES (a_parent, a_name, a_ino, a_cookie);
    UPDATE inode i SET mtime = v_now, ctime = v_now WHERE i.ino = a_parent;
    UPDATE inode i SET nlink = i.nlink + 1, ctime = v_now, parent = 0 WHERE i.ino = a_ino
    RETURNING 0, true, i.* INTO r;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, a_ino, true, 0, 0);
    RETURN r;
END $$;

-- Removes a name. a_kind: 'file' (unlink), 'empty' (rmdir) or 'tree' (remove_tree: a directory is only
-- detached and sustained as doomed, and flag is true; `purge` removes it). a_if_ino, a_if_version:
-- the required inode and version, else ECANCELED.
CREATE FUNCTION wrkfs.remove(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_parent bigint, a_name bytea, a_kind text, a_if_ino bigint, a_if_version bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_freed wrkfs.freed;
    v_ino bigint;
    v_is_dir boolean;
    v_now bigint;
    v_before bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent]) THEN r.errno := -2; RETURN r; END IF;
    -- The contents of a detached directory (nlink 0) are no longer reachable by name.
    SELECT d.ino, i.mode >> 12 = 4 INTO v_ino, v_is_dir
    FROM dentry d JOIN inode i ON i.ino = d.ino JOIN inode p ON p.ino = d.parent AND p.nlink > 0
    WHERE d.parent = a_parent AND d.name = a_name;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    IF wrkfs.is_read_only(v_ino) THEN r.errno := 30; RETURN r; END IF;
    IF v_is_dir AND a_kind = 'file' THEN r.errno := 21; RETURN r; END IF;
    IF a_kind = 'empty' AND NOT v_is_dir THEN r.errno := 20; RETURN r; END IF;
    IF v_is_dir AND wrkfs.is_foreign(a_session, ARRAY[v_ino]) THEN r.errno := -2; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, v_ino]);
    IF a_if_ino IS NOT NULL THEN
        -- Commits lock the inode too, so the compared version is the removed one.
        PERFORM 1 FROM inode i WHERE i.ino = v_ino AND i.ino = a_if_ino
            AND i.version = a_if_version;
        IF NOT FOUND THEN r.errno := 125; RETURN r; END IF;
    END IF;
    IF a_kind = 'empty' THEN
        -- Creations of entries lock the directory too, so no entry can appear after this check.
        PERFORM 1 FROM dentry d WHERE d.parent = v_ino LIMIT 1;
        IF FOUND THEN r.errno := 39; RETURN r; END IF;
    END IF;
    IF wrkfs.recalls(a_session, CASE WHEN v_is_dir THEN ARRAY[a_parent, v_ino]
        ELSE ARRAY[a_parent] END) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    DELETE FROM dentry d USING inode p WHERE d.parent = a_parent AND d.name = a_name
        AND d.ino = v_ino AND p.ino = a_parent AND p.nlink > 0;
    IF NOT FOUND THEN r.errno := 11; RETURN r; END IF;
    v_now := wrkfs.now_ns();
    UPDATE inode i SET mtime = v_now, ctime = v_now, nlink = i.nlink - v_is_dir::integer
    FROM (SELECT o.mtime FROM inode o WHERE o.ino = a_parent) o
    WHERE i.ino = a_parent RETURNING o.mtime INTO v_before;
    IF a_kind = 'tree' OR NOT v_is_dir THEN
        v_freed := wrkfs.detach(a_session, a_parent, a_name, v_ino, v_is_dir, v_now, v_before);
    ELSE
        -- As in `detach`.
        DELETE FROM lease l WHERE l.ino = v_ino AND l.session_id = a_session;
        v_freed := wrkfs.drop_directory(v_ino, a_parent, a_name, v_now, v_before);
    END IF;
    r.errno := 0;
    r.ino := v_ino;
    r.ctime := v_now;           -- ctime and mtime of the directory
    r.flag := a_kind = 'tree' AND v_is_dir;
    PERFORM wrkfs.op_end(
        a_session, a_slot, a_seq, 0, r.flag, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- Takes a tree or a file from its name, which the caller has deleted. A directory is sustained as doomed,
-- and `purge` removes it. The caller has locked the inode. a_now and a_before are those of `drop_link`.
CREATE FUNCTION wrkfs.detach(
    a_session bigint, a_parent bigint, a_name bytea, a_ino bigint, a_is_dir boolean, a_now bigint,
    a_before bigint
) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    v_keeps boolean;
BEGIN
    IF NOT a_is_dir THEN
        RETURN wrkfs.drop_link(a_ino, a_parent, a_name, a_now, a_before);
    END IF;
    v_keeps := wrkfs.has_trash() AND NOT wrkfs.is_read_only(a_ino);
    -- The caller drops its cache of the directory. If another session has just taken a lease, the
    -- purge of the tree recalls it.
    DELETE FROM lease l WHERE l.ino = a_ino AND l.session_id = a_session;
    DELETE FROM delegation d WHERE d.ino = a_ino;
    UPDATE inode i SET nlink = 0, ctime = a_now, parent = CASE WHEN v_keeps THEN a_parent ELSE 0 END
    WHERE i.ino = a_ino;
    IF v_keeps THEN
        INSERT INTO trash (parent, name, ino, bytes, deleted_at, dir_mtime)
        VALUES (a_parent, a_name, a_ino, 0, wrkfs.moment(a_now), a_before);
    END IF;
    INSERT INTO sustained (ino, session_id, doomed) VALUES (a_ino, a_session, true);
    RETURN (0::bigint, 0::bigint);
END $$;

-- Processes the names up to cookie a_last in doomed directory a_dir, whose inodes are locked.
-- Directories become doomed. Files lose links, as in `drop_link`. The caller deletes the entries
-- afterwards.
CREATE FUNCTION wrkfs.purge_children(a_owner bigint, a_dir bigint, a_last bigint)
RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.freed;
    v_now bigint := wrkfs.now_ns();
    v_free bigint[];
    v_linked bigint[];
    v_bytes bigint;
    v_inodes bigint;
    v_keeps boolean := wrkfs.has_trash() AND NOT wrkfs.is_read_only(a_dir);
    v_handed bigint[];
BEGIN
    PERFORM wrkfs.doom_children(a_owner, a_dir, a_last);
    SELECT array_agg(i.ino) FILTER (WHERE i.nlink <= n.names AND NOT v_keeps
            AND NOT EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino)),
        array_agg(i.ino) FILTER (WHERE i.nlink > 1 AND v_keeps)
    INTO v_free, v_linked
    FROM (SELECT d.ino, count(*) AS names FROM dentry d
          WHERE d.parent = a_dir AND d.cookie <= a_last GROUP BY d.ino) n
    JOIN inode i ON i.ino = n.ino
    WHERE i.mode >> 12 <> 4;
    r := wrkfs.free_inodes(coalesce(v_free, '{}'));
    IF v_linked IS NOT NULL THEN
        -- All names of an inode that has names elsewhere; of another inode, all names but the first.
        INSERT INTO removed_link AS l (ino, parent, name, deleted_at)
        SELECT n.ino, a_dir, n.name, wrkfs.moment(v_now)
        FROM (SELECT d.ino, d.name, row_number() OVER ordered AS number,
                  count(*) OVER (PARTITION BY d.ino) AS names FROM dentry d
              WHERE d.parent = a_dir AND d.cookie <= a_last AND d.ino = ANY (v_linked)
              WINDOW ordered AS (PARTITION BY d.ino ORDER BY d.name)) n
        JOIN inode i ON i.ino = n.ino
        WHERE n.number > 1 OR i.nlink > n.names
        ON CONFLICT (ino, parent, name) DO UPDATE
        SET deleted_at = excluded.deleted_at, dir_mtime = NULL;
    END IF;
    WITH cut AS (
        UPDATE inode i SET nlink = greatest(i.nlink - n.names, 0), ctime = v_now,
            parent = CASE WHEN i.nlink <= n.names AND v_keeps THEN a_dir ELSE 0 END
        FROM (SELECT d.ino, count(*)::integer AS names,
                  (array_agg(d.name ORDER BY d.name))[1] AS name
              FROM dentry d
              WHERE d.parent = a_dir AND d.cookie <= a_last GROUP BY d.ino) n
        WHERE i.ino = n.ino AND i.mode >> 12 <> 4
        RETURNING i.ino, n.name, i.parent,
            CASE WHEN i.mode >> 12 = 8 THEN i.size - i.holes - i.borrowed ELSE 0 END AS bytes,
            EXISTS (SELECT 1 FROM sustained s WHERE s.ino = i.ino) AS open
    ), kept AS (
        INSERT INTO trash (parent, name, ino, bytes, deleted_at)
        SELECT a_dir, c.name, c.ino, CASE WHEN c.open THEN 0 ELSE c.bytes END, clock_timestamp()
        FROM cut c WHERE c.parent = a_dir
    )
    SELECT coalesce(sum(c.bytes), 0), count(*), array_agg(c.ino) FILTER (WHERE c.bytes > 0)
    INTO v_bytes, v_inodes, v_handed FROM cut c WHERE c.parent = a_dir AND NOT c.open;
    IF v_handed IS NOT NULL AND wrkfs.lent(v_handed) IS NOT NULL THEN
        PERFORM wrkfs.hand_over(v_handed);
        UPDATE trash t SET bytes = i.size - i.holes - i.borrowed FROM inode i
        WHERE i.ino = ANY (v_handed) AND t.parent = a_dir AND t.ino = i.ino;
    END IF;
    r.bytes := r.bytes + v_bytes;
    r.inodes := r.inodes + v_inodes;
    RETURN r;
END $$;

-- Dooms the directories among the entries up to cookie a_last of doomed directory a_dir.
CREATE FUNCTION wrkfs.doom_children(a_owner bigint, a_dir bigint, a_last bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH doomed AS (
        UPDATE inode i SET nlink = 0,
            parent = CASE WHEN v.trash_seconds > 0 AND NOT wrkfs.is_read_only(a_dir)
                THEN a_dir ELSE 0 END
        FROM dentry d, volume v
        WHERE d.parent = a_dir AND d.cookie <= a_last AND i.ino = d.ino AND i.mode >> 12 = 4
        RETURNING i.ino, i.parent, d.name
    ), kept AS (
        INSERT INTO trash (parent, name, ino, bytes, deleted_at)
        SELECT a_dir, d.name, d.ino, 0, clock_timestamp() FROM doomed d WHERE d.parent = a_dir
        ON CONFLICT DO NOTHING
    )
    INSERT INTO sustained (ino, session_id, doomed) SELECT d.ino, a_owner, true FROM doomed d
    ON CONFLICT (ino, session_id) DO UPDATE SET doomed = true;
END $$;

-- Ends a locked doomed directory that has no entries left. In the trash, its time of removal is later
-- than that of its contents.
CREATE FUNCTION wrkfs.end_doomed(a_owner bigint, a_dir bigint) RETURNS wrkfs.freed
LANGUAGE plpgsql AS $$
DECLARE
    v_parent bigint;
BEGIN
    DELETE FROM sustained s WHERE s.ino = a_dir AND s.session_id = a_owner;
    SELECT i.parent INTO v_parent FROM inode i WHERE i.ino = a_dir;
    UPDATE trash t SET deleted_at = clock_timestamp()
    WHERE t.parent = v_parent AND t.ino = a_dir;
    IF FOUND THEN RETURN (0::bigint, 1::bigint); END IF;
    RETURN wrkfs.free_inodes(ARRAY[a_dir]);
END $$;

-- Removes up to about a_limit entries of the trees that session a_owner has doomed. A subdirectory
-- becomes doomed itself, so each step is bounded, and neither depth nor a cycle matters. flag: more
-- entries remain.
CREATE FUNCTION wrkfs.purge(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_owner bigint, a_limit integer
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_left integer := a_limit;
    v_bytes bigint := 0;
    v_inodes bigint := 0;
    v_freed wrkfs.freed;
    v_dir bigint;
    v_inos bigint[];
    v_last bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    r.flag := true;
    WHILE v_left > 0 LOOP
        SELECT s.ino INTO v_dir FROM sustained s
        WHERE s.session_id = a_owner AND s.doomed LIMIT 1;
        IF NOT FOUND THEN r.flag := false; EXIT; END IF;
        -- Two calls that purge the same tree run one after the other.
        PERFORM wrkfs.lock_inodes(ARRAY[v_dir]);
        PERFORM 1 FROM sustained s
        WHERE s.ino = v_dir AND s.session_id = a_owner AND s.doomed;
        CONTINUE WHEN NOT FOUND;    -- the other call has ended and booked it
        SELECT array_agg(e.ino), max(e.cookie) INTO v_inos, v_last
        FROM (SELECT d.ino, d.cookie FROM dentry d WHERE d.parent = v_dir
              ORDER BY d.cookie LIMIT v_left) e;
        PERFORM wrkfs.lock_inodes(v_inos);
        -- Only a session that works inside the tree has a lease on it, and that may be this session. The
        -- work so far stays.
        IF wrkfs.recalls(0, ARRAY[v_dir]) OR wrkfs.is_foreign(0, v_inos) THEN
            EXIT WHEN v_left < a_limit;
            r.errno := -2;
            RETURN r;
        END IF;
        IF v_inos IS NULL THEN
            v_freed := wrkfs.end_doomed(a_owner, v_dir);
            v_left := v_left - 1;
        ELSE
            v_freed := wrkfs.purge_children(a_owner, v_dir, v_last);
            DELETE FROM dentry d WHERE d.parent = v_dir AND d.cookie <= v_last;
            v_left := v_left - cardinality(v_inos);
        END IF;
        v_bytes := v_bytes + v_freed.bytes;
        v_inodes := v_inodes + v_freed.inodes;
    END LOOP;
    r.errno := 0;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, r.flag, -v_bytes, -v_inodes);
    RETURN r;
END $$;

-- Returns the parent of a directory (in `ino` of the answer).
CREATE FUNCTION wrkfs.parent(a_ino bigint) RETURNS wrkfs.reply LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.reply;
BEGIN
    SELECT 0, false, i.parent INTO r.errno, r.flag, r.ino FROM inode i
    WHERE i.ino = a_ino AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_ino); END IF;
    PERFORM 1 FROM delegation d WHERE d.ino = a_ino AND d.session_id <> wrkfs.me();
    IF FOUND THEN r.errno := -3; r.ino := a_ino; END IF;
    RETURN r;
END $$;
