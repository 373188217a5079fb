-- Rename, and the naming of a file without a name.

-- Checks a move of directory a_ino into directory a_goal. Returns 0; EINVAL if a_goal is the directory
-- itself or below it; ENOENT if a_goal is in a detached tree; EIO if the rows are a cycle or deeper
-- than 100,000. The caller holds the lock of directory moves, so the parents do not change.
CREATE FUNCTION wrkfs.check_loop(a_ino bigint, a_goal bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_at bigint := a_goal;
    v_nlink integer;
BEGIN
    FOR step IN 1..100000 LOOP
        IF v_at = a_ino THEN RETURN 22; END IF;
        IF v_at = 1 THEN RETURN 0; END IF;
        SELECT i.parent, i.nlink INTO v_at, v_nlink FROM inode i WHERE i.ino = v_at;
        IF NOT FOUND OR v_nlink = 0 THEN RETURN 2; END IF;
    END LOOP;
    RETURN 5;
END $$;

-- Returns 0 if a_ino (of kind a_is_dir) may replace the locked inode a_target.
CREATE FUNCTION wrkfs.check_replace(a_is_dir boolean, a_target bigint, a_target_is_dir boolean)
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF a_is_dir AND NOT a_target_is_dir THEN RETURN 20; END IF;
    IF NOT a_target_is_dir THEN RETURN 0; END IF;
    IF NOT a_is_dir THEN RETURN 21; END IF;
    PERFORM 1 FROM dentry d WHERE d.parent = a_target LIMIT 1;
    RETURN CASE WHEN FOUND THEN 39 ELSE 0 END;
END $$;

-- renameat2(2). a_flags: 0, 1 (NOREPLACE) or 2 (EXCHANGE). a_cookie is the cookie of a new name; flag
-- is true if the name is new.
CREATE FUNCTION wrkfs.rename(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_parent bigint, a_name bytea, a_new_parent bigint, a_new_name bytea, a_flags integer,
    a_cookie bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_freed wrkfs.freed := (0, 0);
    v_ino bigint;
    v_dir boolean;          -- the moved inode is a directory
    v_target bigint;        -- the inode under the new name, or NULL
    v_target_dir boolean;
    v_across boolean := a_parent <> a_new_parent;
    v_now bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent, a_new_parent]) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    SELECT d.ino, i.mode >> 12 = 4 INTO v_ino, v_dir
    FROM dentry d JOIN inode i ON i.ino = d.ino JOIN inode p ON p.ino = d.parent AND p.nlink > 0
    WHERE d.parent = a_parent AND d.name = a_name;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    SELECT d.ino, i.mode >> 12 = 4 INTO v_target, v_target_dir
    FROM dentry d JOIN inode i ON i.ino = d.ino
    WHERE d.parent = a_new_parent AND d.name = a_new_name;
    IF (v_dir OR v_target_dir) AND wrkfs.is_foreign(a_session, ARRAY[v_ino, v_target]) THEN
        r.errno := -2;
        RETURN r;
    END IF;
    IF wrkfs.is_read_only(greatest(a_new_parent, v_ino, v_target)) THEN
        r.errno := 30;
        RETURN r;
    END IF;
    IF v_across AND (v_dir OR (a_flags = 2 AND v_target_dir)) THEN
        PERFORM 1 FROM counter c WHERE c.kind = 'rename' FOR NO KEY UPDATE;
    END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, a_new_parent, v_ino, v_target]);
    -- These names can no longer change. Check whether they changed since they were read.
    PERFORM 1 FROM dentry d JOIN inode p ON p.ino = d.parent AND p.nlink > 0
    WHERE d.parent = a_parent AND d.name = a_name AND d.ino = v_ino;
    IF NOT FOUND THEN r.errno := 11; RETURN r; END IF;
    IF (SELECT d.ino FROM dentry d WHERE d.parent = a_new_parent AND d.name = a_new_name)
        IS DISTINCT FROM v_target THEN
        r.errno := 11;
        RETURN r;
    END IF;
    PERFORM 1 FROM inode i WHERE i.ino = a_new_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_new_parent); RETURN r; END IF;

    r.errno := CASE WHEN v_target IS NULL AND a_flags = 2 THEN 2
        WHEN v_target IS NOT NULL AND a_flags = 1 THEN 17 ELSE 0 END;
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF v_target = v_ino THEN    -- two names of one inode: no effect
        PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, 0, 0);
        RETURN r;
    END IF;
    IF v_across AND v_dir THEN r.errno := wrkfs.check_loop(v_ino, a_new_parent); END IF;
    IF r.errno = 0 AND v_across AND a_flags = 2 AND v_target_dir THEN
        r.errno := wrkfs.check_loop(v_target, a_parent);
    END IF;
    IF r.errno = 0 AND v_target IS NOT NULL AND a_flags <> 2 THEN
        r.errno := wrkfs.check_replace(v_dir, v_target, v_target_dir);
    END IF;
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF wrkfs.recalls(a_session, ARRAY[a_parent, a_new_parent]
        || CASE WHEN v_dir THEN ARRAY[v_ino] ELSE '{}' END
        || CASE WHEN v_target_dir THEN ARRAY[v_target] ELSE '{}' END) THEN
        r.errno := -2;
        RETURN r;
    END IF;

    v_now := wrkfs.now_ns();
    IF v_target IS NULL THEN
        UPDATE dentry d SET parent = a_new_parent, name = a_new_name, cookie = a_cookie
        WHERE d.parent = a_parent AND d.name = a_name;
    ELSE
        UPDATE dentry d SET ino = v_ino WHERE d.parent = a_new_parent AND d.name = a_new_name;
        IF a_flags = 2 THEN
            UPDATE dentry d SET ino = v_target WHERE d.parent = a_parent AND d.name = a_name;
        ELSE
            DELETE FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
        END IF;
    END IF;
    PERFORM wrkfs.rename_inodes(a_parent, a_new_parent, v_ino, v_dir, v_target, v_target_dir,
        a_flags = 2, v_now);
    IF v_target IS NOT NULL AND a_flags <> 2 THEN
        IF v_target_dir THEN
            v_freed := wrkfs.drop_directory(v_target, a_new_parent, a_new_name, v_now, NULL);
        ELSE
            v_freed := wrkfs.drop_link(v_target, a_new_parent, a_new_name, v_now, NULL);
        END IF;
    END IF;
    r.ctime := v_now;           -- ctime and mtime of both directories
    r.flag := v_target IS NULL;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, 0, false, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- The inode part of a rename: times, link counts of the parents, parent pointers.
CREATE FUNCTION wrkfs.rename_inodes(
    a_parent bigint, a_new_parent bigint, a_ino bigint, a_dir boolean, a_target bigint,
    a_target_dir boolean, a_exchange boolean, a_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_in integer := a_dir::integer;
    v_out integer := coalesce(a_target_dir, false)::integer;
BEGIN
    -- A moved subdirectory leaves the old parent and enters the new one. A replaced one leaves the
    -- new parent. An exchanged one moves in the other direction.
    UPDATE inode i SET mtime = a_now, ctime = a_now, nlink = i.nlink
        + CASE WHEN i.ino = a_new_parent THEN v_in - v_out ELSE 0 END
        - CASE WHEN i.ino = a_parent THEN v_in ELSE 0 END
        + CASE WHEN i.ino = a_parent AND a_exchange THEN v_out ELSE 0 END
    WHERE i.ino = ANY (ARRAY[a_parent, a_new_parent]);
    UPDATE inode i SET ctime = a_now,
        parent = CASE WHEN a_dir OR i.nlink = 1 THEN a_new_parent ELSE 0 END
    WHERE i.ino = a_ino;
    IF a_exchange THEN
        UPDATE inode i SET ctime = a_now,
            parent = CASE WHEN a_target_dir OR i.nlink = 1 THEN a_parent ELSE 0 END
        WHERE i.ino = a_target;
    END IF;
END $$;

-- Gives a file without a name its name, durably. It may replace a regular file, whose mode (without
-- set-id bits) and owner stay. a_if_ino, a_if_version: the required inode and version, else ECANCELED.
-- a_if_absent: the name must not exist. flag: nothing was replaced.
CREATE FUNCTION wrkfs.publish(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint, a_parent bigint, a_name bytea, a_cookie bigint,
    a_if_ino bigint, a_if_version bigint, a_if_absent boolean
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
    v_freed wrkfs.freed := (0, 0);
    v_old wrkfs.reply;
    v_dir wrkfs.reply;
    v_target bigint;
    v_now bigint := wrkfs.now_ns();
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_parent]) THEN r.errno := -2; RETURN r; END IF;
    SELECT d.ino INTO v_target FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
    IF wrkfs.is_read_only(greatest(a_parent, v_target)) THEN r.errno := 30; RETURN r; END IF;
    PERFORM wrkfs.lock_inodes(ARRAY[a_parent, a_ino, v_target]);
    SELECT 0, false, i.* INTO v_dir FROM inode i
    WHERE i.ino = a_parent AND i.mode >> 12 = 4 AND i.nlink > 0;
    IF NOT FOUND THEN r.errno := wrkfs.why_not(a_parent); RETURN r; END IF;
    PERFORM 1 FROM dentry d WHERE d.parent = a_parent AND d.name = a_name;
    IF FOUND IS DISTINCT FROM (v_target IS NOT NULL) THEN r.errno := 11; RETURN r; END IF;
    IF v_target IS NOT NULL THEN
        SELECT 0, false, i.* INTO v_old FROM dentry d JOIN inode i ON i.ino = d.ino
        WHERE d.parent = a_parent AND d.name = a_name AND d.ino = v_target;
        IF NOT FOUND THEN r.errno := 11; RETURN r; END IF;
    END IF;
    r.errno := wrkfs.check_publish(a_ino, v_old, a_if_ino, a_if_version, a_if_absent);
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF wrkfs.recalls(a_session, ARRAY[a_parent]) THEN r.errno := -2; RETURN r; END IF;

    IF v_target IS NULL THEN
        INSERT INTO dentry (parent, name, ino, cookie)
        VALUES (a_parent, a_name, a_ino, a_cookie);
        UPDATE inode i SET nlink = 1, ctime = v_now, parent = a_parent,
            gid = CASE WHEN v_dir.mode & 1024 <> 0 THEN v_dir.gid ELSE i.gid END
        WHERE i.ino = a_ino RETURNING 0, true, i.* INTO r;
    ELSE
        UPDATE dentry d SET ino = a_ino WHERE d.parent = a_parent AND d.name = a_name;
        UPDATE inode i SET nlink = 1, ctime = v_now, parent = a_parent,
            uid = v_old.uid, gid = v_old.gid, mode = wrkfs.without_set_ids(v_old.mode)
        WHERE i.ino = a_ino RETURNING 0, false, i.* INTO r;
        v_freed := wrkfs.drop_link(v_target, a_parent, a_name, v_now, NULL);
    END IF;
    UPDATE inode i SET mtime = v_now, ctime = v_now WHERE i.ino = a_parent;
    PERFORM wrkfs.op_end(
        a_session, a_slot, a_seq, a_ino, r.flag, -v_freed.bytes, -v_freed.inodes);
    RETURN r;
END $$;

-- Checks the conditions of publish; a_old is the locked inode of the name (all NULL: none).
CREATE FUNCTION wrkfs.check_publish(
    a_ino bigint, a_old wrkfs.reply, a_if_ino bigint, a_if_version bigint, a_if_absent boolean
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_mode integer;
    v_nlink integer;
BEGIN
    SELECT i.mode, i.nlink INTO v_mode, v_nlink FROM inode i WHERE i.ino = a_ino;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, v_nlink) THEN RETURN 2; END IF;
    IF v_nlink <> 0 OR v_mode >> 12 <> 8 THEN RETURN 22; END IF;
    -- A file in the trash comes back by `restore`, which also removes its entry.
    PERFORM 1 FROM inode i WHERE i.ino = a_ino AND i.parent <> 0;
    IF FOUND THEN RETURN 22; END IF;
    IF a_old.mode >> 12 = 4 THEN RETURN 21; END IF;
    IF a_if_ino IS NOT NULL
        AND (a_old.ino, a_old.version) IS DISTINCT FROM (a_if_ino, a_if_version) THEN
        RETURN 125;
    END IF;
    IF a_old.ino IS NULL THEN RETURN 0; END IF;
    IF a_if_absent THEN RETURN 125; END IF;
    RETURN CASE WHEN a_old.mode >> 12 = 8 THEN 0 ELSE 17 END;
END $$;
