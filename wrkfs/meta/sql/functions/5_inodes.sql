-- Attributes, symbolic links, extended attributes.

-- Returns the attributes of an inode.
CREATE FUNCTION wrkfs.getattr(a_ino bigint) RETURNS wrkfs.reply LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.reply;
BEGIN
    SELECT 0, false, i.* INTO r FROM inode i WHERE i.ino = a_ino;
    IF wrkfs.covers_elsewhere(r.ino, r.mode, r.parent) THEN
        r := NULL;
        r.errno := -3;
        r.ino := a_ino;
    ELSIF r.ino IS NULL OR wrkfs.is_gone(a_ino, r.nlink) AND NOT wrkfs.is_just_gone(a_ino) THEN
        r := NULL;
        r.errno := 2;
    END IF;
    RETURN r;
END $$;

-- Does the same for a session with a lease that may cover the inode. flag: settled. The directory of a
-- file must be settled too: `delegate` locks only the directory, and may have looked for leases before
-- this session took its own.
CREATE FUNCTION wrkfs.stat(a_ino bigint) RETURNS wrkfs.reply LANGUAGE plpgsql STABLE AS $$
DECLARE
    r wrkfs.reply;
BEGIN
    SELECT 0, wrkfs.settled(i.xmax) AND (i.mode >> 12 = 4 OR NOT EXISTS (
            SELECT 1 FROM inode p WHERE p.ino = i.parent AND NOT wrkfs.settled(p.xmax))), i.*
    INTO r FROM inode i WHERE i.ino = a_ino;
    IF NOT FOUND OR r.nlink = 0 OR wrkfs.covers_elsewhere(r.ino, r.mode, r.parent) THEN
        r := wrkfs.getattr(a_ino);
        r.flag := false;
    END IF;
    RETURN r;
END $$;

-- Changes attributes; NULL leaves one unchanged, and the database's clock can set times. ctime changes,
-- unless the call only sets the size of a file without bytes (`resize`). A new owner clears the set-id
-- bits of a file unless the call also sets the mode. Whether a new size clears them depends on the
-- caller's rights, so the adapter then sends the mode.
CREATE FUNCTION wrkfs.setattr(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ino bigint,
    a_mode integer, a_uid bigint, a_gid bigint, a_size bigint, a_atime bigint, a_mtime bigint,
    a_atime_now boolean, a_mtime_now boolean
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_now bigint := wrkfs.now_ns();
    v_mode integer;
    v_nlink integer;
    v_size bigint;
    v_growth bigint := 0;
    v_home bigint;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    SELECT i.mode, i.nlink, i.size, wrkfs.home(i.ino, i.mode, i.nlink, i.parent)
    INTO v_mode, v_nlink, v_size, v_home
    FROM inode i WHERE i.ino = a_ino FOR NO KEY UPDATE;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, v_nlink) THEN r.errno := 2; RETURN r; END IF;
    IF wrkfs.is_read_only(a_ino) THEN r.errno := 30; RETURN r; END IF;
    IF a_size IS NULL THEN
        r.errno := wrkfs.op_pass(a_session, a_slot, a_seq, a_ino, false, 0, 0, v_home);
        IF r.errno <> 0 THEN RETURN r; END IF;
    ELSE
        -- A longer file has a hole at its end, which uses nothing of the quota.
        r.errno := CASE WHEN v_mode >> 12 = 4 THEN 21 WHEN v_mode >> 12 <> 8 THEN 22 ELSE 0 END;
        IF r.errno <> 0 THEN RETURN r; END IF;
        IF wrkfs.recalls(a_session, ARRAY[v_home]) THEN r.errno := -2; RETURN r; END IF;
        v_growth := wrkfs.resize(a_ino, a_size);
    END IF;
    UPDATE inode i
    SET ctime = CASE WHEN a_size = v_size AND i.holes = i.size
                AND coalesce(a_mode, a_uid, a_gid) IS NULL
                AND coalesce(a_atime, a_mtime) IS NULL AND NOT (a_atime_now OR a_mtime_now)
            THEN i.ctime ELSE v_now END,
        mode = CASE WHEN a_mode IS NOT NULL THEN (i.mode & 61440) | (a_mode & 4095)
            WHEN i.mode >> 12 <> 4 AND coalesce(a_uid, a_gid) IS NOT NULL
            THEN wrkfs.without_set_ids(i.mode) ELSE i.mode END,
        uid = coalesce(a_uid, i.uid), gid = coalesce(a_gid, i.gid),
        atime = CASE WHEN a_atime_now THEN v_now ELSE coalesce(a_atime, i.atime) END,
        mtime = CASE WHEN a_mtime_now THEN v_now ELSE coalesce(a_mtime, i.mtime) END
    WHERE i.ino = a_ino RETURNING 0, false, i.* INTO r;
    IF a_size IS NOT NULL THEN
        r.errno := wrkfs.op_end(a_session, a_slot, a_seq, a_ino, false, v_growth, 0);
    END IF;
    RETURN r;
END $$;

-- Moves access times forward (relatime), and changes nothing else. Returns false if the session is
-- fenced. The arrays are sorted by ino. The call is idempotent and stores no answer in a slot. Its
-- lock on one of the slots makes `fence` wait for it, as for every change.
CREATE FUNCTION wrkfs.touch(
    a_session bigint, a_epoch bigint, a_inos bigint[], a_atimes bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM op_result o
    WHERE o.session_id = a_session AND o.epoch = a_epoch AND o.slot = 1 FOR KEY SHARE;
    IF NOT FOUND THEN RETURN false; END IF;
    FOR k IN 1..cardinality(a_inos) LOOP
        UPDATE inode i SET atime = a_atimes[k]
        WHERE i.ino = a_inos[k] AND i.atime < a_atimes[k] AND NOT wrkfs.is_read_only(i.ino);
    END LOOP;
    -- Access times need no recall. Sessions with a lease are only notified, by negative numbers: they
    -- read the attributes again and keep the lease. One message has room for a limited number.
    PERFORM pg_notify(n.channel, n.inos) FROM (
        SELECT s.channel, string_agg((-e.ino)::text, ',') AS inos
        FROM (
            SELECT i.ino, l.session_id,
                row_number() OVER (PARTITION BY l.session_id ORDER BY i.ino) / 300 AS message
            FROM inode i JOIN lease l ON l.ino > 0
                AND l.ino = CASE WHEN i.mode >> 12 = 4 THEN i.ino ELSE i.parent END
            WHERE i.ino = ANY (a_inos) AND i.nlink > 0 AND l.session_id <> a_session) e
        JOIN session s ON s.session_id = e.session_id AND s.channel IS NOT NULL
        GROUP BY s.channel, e.message) n;
    RETURN true;
END $$;

-- Returns the target of a symbolic link.
CREATE FUNCTION wrkfs.readlink(a_ino bigint, OUT errno integer, OUT target bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_mode integer;
    v_nlink integer;
    v_parent bigint;
BEGIN
    SELECT i.mode, i.nlink, i.parent, l.target INTO v_mode, v_nlink, v_parent, target
    FROM inode i LEFT JOIN symlink l ON l.ino = i.ino WHERE i.ino = a_ino;
    IF wrkfs.covers_elsewhere(a_ino, v_mode, v_parent) THEN errno := -3; RETURN; END IF;
    errno := CASE WHEN v_mode IS NULL OR wrkfs.is_gone(a_ino, v_nlink) THEN 2 WHEN v_mode >> 12 <> 10 THEN 22
        WHEN target IS NULL THEN 5 ELSE 0 END;
END $$;

-- Returns the value of an extended attribute.
CREATE FUNCTION wrkfs.getxattr(a_ino bigint, a_name bytea, OUT errno integer, OUT value bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_mode integer;
    v_nlink integer;
    v_parent bigint;
BEGIN
    SELECT i.mode, i.nlink, i.parent, x.value INTO v_mode, v_nlink, v_parent, value
    FROM inode i LEFT JOIN xattr x ON x.ino = i.ino AND x.name = a_name WHERE i.ino = a_ino;
    IF wrkfs.covers_elsewhere(a_ino, v_mode, v_parent) THEN errno := -3; RETURN; END IF;
    errno := CASE WHEN v_mode IS NULL OR wrkfs.is_gone(a_ino, v_nlink) THEN 2 WHEN value IS NULL THEN 61 ELSE 0 END;
END $$;

-- Returns the names of an inode's extended attributes, sorted.
CREATE FUNCTION wrkfs.listxattr(a_ino bigint, OUT errno integer, OUT names bytea[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_mode integer;
    v_nlink integer;
    v_parent bigint;
BEGIN
    SELECT i.mode, i.nlink, i.parent INTO v_mode, v_nlink, v_parent
    FROM inode i WHERE i.ino = a_ino;
    IF wrkfs.covers_elsewhere(a_ino, v_mode, v_parent) THEN errno := -3; RETURN; END IF;
    IF v_mode IS NULL OR wrkfs.is_gone(a_ino, v_nlink) THEN errno := 2; RETURN; END IF;
    errno := 0;
    SELECT array_agg(x.name ORDER BY x.name) INTO names FROM xattr x WHERE x.ino = a_ino;
END $$;

-- Sets (a_value) or removes (a_value NULL) an extended attribute. a_flags: 0, 1 (CREATE: it must not
-- exist), 2 (REPLACE: it must exist).
CREATE FUNCTION wrkfs.setxattr(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint, a_ino bigint,
    a_name bytea, a_value bytea, a_flags integer
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    v_list bigint;
    v_nlink integer;
BEGIN
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    IF wrkfs.is_foreign(a_session, ARRAY[a_ino]) THEN r.errno := -2; RETURN r; END IF;
    SELECT i.nlink INTO v_nlink FROM inode i WHERE i.ino = a_ino FOR NO KEY UPDATE;
    IF NOT FOUND OR wrkfs.is_gone(a_ino, v_nlink) THEN r.errno := 2; RETURN r; END IF;
    IF wrkfs.is_read_only(a_ino) THEN r.errno := 30; RETURN r; END IF;
    PERFORM 1 FROM xattr x WHERE x.ino = a_ino AND x.name = a_name;
    r.errno := CASE WHEN FOUND AND a_flags = 1 THEN 17 WHEN NOT FOUND AND a_flags = 2 THEN 61
        ELSE 0 END;
    IF r.errno <> 0 THEN RETURN r; END IF;
    IF wrkfs.recalls_of(a_session, a_ino) THEN r.errno := -2; RETURN r; END IF;
    IF a_value IS NULL THEN
        DELETE FROM xattr x WHERE x.ino = a_ino AND x.name = a_name;
    ELSE
        -- listxattr(2) returns at most 64 KiB of names.
        SELECT coalesce(sum(octet_length(x.name) + 1), 0) INTO v_list FROM xattr x
        WHERE x.ino = a_ino AND x.name <> a_name;
        IF v_list + octet_length(a_name) + 1 > 65536 THEN r.errno := 28; RETURN r; END IF;
        INSERT INTO xattr (ino, name, value) VALUES (a_ino, a_name, a_value)
        ON CONFLICT (ino, name) DO UPDATE SET value = excluded.value;
    END IF;
    UPDATE inode i SET ctime = wrkfs.now_ns() WHERE i.ino = a_ino
    RETURNING 0, false, i.* INTO r;
    PERFORM wrkfs.op_end(a_session, a_slot, a_seq, a_ino, false, 0, 0);
    RETURN r;
END $$;
