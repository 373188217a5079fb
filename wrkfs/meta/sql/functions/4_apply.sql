-- Changes that a session decided under its delegations (1_delegations.sql).

-- Applies a batch of changes: their net effect as rows, since the last batch. The rows replace whole
-- rows, because no other session can have changed them. One transaction, durable, repeatable by
-- (slot 0, seq). Arrays that belong together have one element per row:
--   a_ino ...: inodes, new ones (a_new) or present ones
--   a_cut_*: entries to delete; a_put_*: entries to add, or to give another inode
--   a_link_*: targets of new symbolic links
--   a_emptied: files to cut to no bytes, before their extents
--   a_ext_*: extents of files, in order, as in `commit`; the versions of the files count them already
--   a_gone_*: inodes that lost their last name, at which time, and the mtime of the directory before
--   a_waste_*: slices in the object store that no file uses
--   a_release: directories whose delegations end with this call
--   a_room_bytes, a_room_inodes: what the session still needs of its reservation
-- Returns EIO, and changes nothing, if the rows do not fit those of the database.
CREATE FUNCTION wrkfs.apply(
    a_session bigint, a_epoch bigint, a_slot integer, a_seq bigint,
    a_ino bigint[], a_new boolean[], a_mode integer[], a_nlink integer[], a_uid bigint[],
    a_gid bigint[], a_rdev bigint[], a_size bigint[], a_atime bigint[], a_mtime bigint[],
    a_ctime bigint[], a_version bigint[], a_parent bigint[], a_holes bigint[],
    a_cut_parent bigint[], a_cut_name bytea[],
    a_put_parent bigint[], a_put_name bytea[], a_put_ino bigint[], a_put_cookie bigint[],
    a_link_ino bigint[], a_link_target bytea[],
    a_emptied bigint[],
    a_ext_ino bigint[], a_ext_pos bigint[], a_ext_slice bigint[], a_ext_length bigint[],
    a_ext_checksums bytea[], a_ext_inline bytea[],
    a_gone_ino bigint[], a_gone_parent bigint[], a_gone_name bytea[], a_gone_at bigint[],
    a_gone_before bigint[],
    a_waste_slice bigint[], a_waste_size bigint[],
    a_release bigint[], a_room_bytes bigint, a_room_inodes bigint
) RETURNS wrkfs.reply LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.reply;
    v_state integer;
    v_fresh bigint[] := '{}';
    v_there bigint;
    v_bytes bigint;
    v_borrowed boolean;
    v_freed wrkfs.freed := (0, 0);
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    v_state := wrkfs.op_begin(a_session, a_epoch, a_slot, a_seq);
    IF v_state <> 0 THEN RETURN wrkfs.op_repeat(v_state, a_session, a_slot); END IF;
    -- An fsync sends a batch with one extent. A statement takes 20 us, so none runs for nothing.
    IF true = ANY (a_new) THEN
        v_fresh := ARRAY(SELECT g.ino FROM unnest(a_ino, a_new) AS g (ino, new) WHERE g.new);
    END IF;
    PERFORM wrkfs.lock_inodes(a_ino || a_gone_ino);
    -- An inode without a name has no delegation: its row would come back to life.
    SELECT count(*) FILTER (WHERE i.nlink > 0),
        coalesce(sum(-(i.size - i.holes - i.borrowed)) FILTER (WHERE i.mode >> 12 = 8), 0),
        coalesce(bool_or(i.borrowed > 0), false)
    INTO v_there, v_bytes, v_borrowed FROM inode i WHERE i.ino = ANY (a_ino);
    IF v_there <> cardinality(a_ino) - cardinality(v_fresh)
        OR cardinality(a_gone_ino) > 0
            AND (SELECT count(*) FROM inode i WHERE i.ino = ANY (a_gone_ino) AND i.nlink > 0)
                <> cardinality(a_gone_ino)
        OR cardinality(a_ext_slice) > 0
            AND EXISTS (SELECT 1 FROM deleted d WHERE d.slice_id = ANY (a_ext_slice)) THEN
        r.errno := 5;
        RETURN r;
    END IF;
    IF cardinality(a_cut_parent) > 0 THEN
        DELETE FROM dentry d USING unnest(a_cut_parent, a_cut_name) AS g (parent, name)
        WHERE d.parent = g.parent AND d.name = g.name;
    END IF;
    IF cardinality(a_put_parent) > 0 THEN
        INSERT INTO dentry (parent, name, ino, cookie)
        SELECT * FROM unnest(a_put_parent, a_put_name, a_put_ino, a_put_cookie)
        ON CONFLICT (parent, name) DO UPDATE SET ino = excluded.ino;
    END IF;
    IF cardinality(a_emptied) > 0 THEN
        PERFORM wrkfs.resize(g.ino, 0) FROM unnest(a_emptied) AS g (ino);
    END IF;
    IF cardinality(a_ext_ino) > 0 THEN
        PERFORM wrkfs.apply_extents(v_fresh, a_ext_ino, a_ext_pos, a_ext_slice, a_ext_length,
            a_ext_checksums, a_ext_inline);
    END IF;
    IF cardinality(v_fresh) > 0 THEN
        INSERT INTO inode (ino, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version,
            parent, holes)
        SELECT g.ino, g.mode, g.nlink, g.uid, g.gid, g.rdev, g.size, g.atime, g.mtime, g.ctime,
            g.version, g.parent, g.holes
        FROM unnest(a_ino, a_new, a_mode, a_nlink, a_uid, a_gid, a_rdev, a_size, a_atime, a_mtime,
            a_ctime, a_version, a_parent, a_holes)
            AS g (ino, new, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, version,
            parent, holes)
        WHERE g.new;
    END IF;
    UPDATE inode i SET mode = g.mode, nlink = g.nlink, uid = g.uid, gid = g.gid, size = g.size,
        atime = greatest(i.atime, g.atime), mtime = g.mtime, ctime = g.ctime, version = g.version,
        parent = g.parent, holes = g.holes
    FROM unnest(a_ino, a_new, a_mode, a_nlink, a_uid, a_gid, a_size, a_atime, a_mtime, a_ctime,
        a_version, a_parent, a_holes)
        AS g (ino, new, mode, nlink, uid, gid, size, atime, mtime, ctime, version, parent, holes)
    WHERE i.ino = g.ino AND NOT g.new;
    IF v_borrowed THEN
        UPDATE inode i SET borrowed = wrkfs.borrowed(i.ino, 0, i.size)
        WHERE i.ino = ANY (a_ext_ino) AND i.borrowed > 0;
    END IF;
    SELECT v_bytes
        + coalesce(sum(i.size - i.holes - i.borrowed) FILTER (WHERE i.mode >> 12 = 8), 0)
    INTO v_bytes FROM inode i WHERE i.ino = ANY (a_ino);
    IF cardinality(a_link_ino) > 0 THEN
        INSERT INTO symlink (ino, target) SELECT * FROM unnest(a_link_ino, a_link_target);
    END IF;
    IF cardinality(a_gone_ino) > 0 THEN
        v_freed := wrkfs.apply_removals(a_session, a_gone_ino, a_gone_parent, a_gone_name,
            a_gone_at, a_gone_before);
    END IF;
    IF cardinality(v_fresh) > 0 THEN
        PERFORM wrkfs.apply_grants(a_session, a_seq, v_fresh);
    END IF;
    IF cardinality(a_waste_slice) > 0 THEN
        INSERT INTO deleted (slice_id, size) SELECT * FROM unnest(a_waste_slice, a_waste_size)
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(a_release) > 0 THEN
        DELETE FROM delegation d WHERE d.ino = ANY (a_release) AND d.session_id = a_session;
    END IF;
    PERFORM wrkfs.set_reservation(a_session, a_room_bytes, a_room_inodes);
    r.errno := wrkfs.op_end(a_session, a_slot, a_seq, 0, false,
        v_bytes - v_freed.bytes, cardinality(v_fresh) - v_freed.inodes);
    RETURN r;
END $$;

-- Adds the extents of a batch. New files with one extent in one chunk, the usual case, take two
-- statements together. a_fresh are the new files, which have no rows yet.
CREATE FUNCTION wrkfs.apply_extents(
    a_fresh bigint[], a_ino bigint[], a_pos bigint[], a_slice bigint[], a_length bigint[],
    a_checksums bytea[], a_inline bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
    v_single bigint[] := '{}';
    v_ino bigint := 0;
    v_size bigint;
    v_version bigint;
BEGIN
    IF cardinality(a_fresh) > 0 THEN
        v_single := ARRAY(
            SELECT g.ino FROM unnest(a_ino, a_pos, a_length) AS g (ino, pos, length)
            WHERE g.ino = ANY (a_fresh) GROUP BY g.ino
            HAVING count(*) = 1 AND min(g.pos) >> 26 = (min(g.pos) + min(g.length) - 1) >> 26);
        INSERT INTO inline (slice_id, data)
        SELECT g.slice, g.inline FROM unnest(a_ino, a_slice, a_inline) AS g (ino, slice, inline)
        WHERE g.inline IS NOT NULL AND g.ino = ANY (v_single);
        INSERT INTO slice (inode, chunk, ord, pos, slice_id, size, off, length, checksums,
            is_inline)
        SELECT g.ino, g.pos >> 26, 1, g.pos, g.slice, g.length, 0, g.length,
            CASE WHEN g.inline IS NULL THEN g.checksums ELSE '' END, g.inline IS NOT NULL
        FROM unnest(a_ino, a_pos, a_slice, a_length, a_checksums, a_inline)
            AS g (ino, pos, slice, length, checksums, inline)
        WHERE g.ino = ANY (v_single);
    END IF;
    FOR v IN
        SELECT g.* FROM unnest(a_ino, a_pos, a_slice, a_length, a_checksums, a_inline)
            WITH ORDINALITY AS g (ino, pos, slice, length, checksums, inline, number)
        WHERE NOT g.ino = ANY (v_single) ORDER BY g.ino, g.number
    LOOP
        IF v.ino <> v_ino THEN
            v_ino := v.ino;
            v_size := 0;
            v_version := 0;
            SELECT i.size, i.version INTO v_size, v_version FROM inode i WHERE i.ino = v_ino;
            v_size := coalesce(v_size, 0);
            v_version := coalesce(v_version, 0);
        END IF;
        v_version := wrkfs.put_extent(v_ino, v_size, v_version, v.pos, v.slice, v.length,
            v.checksums, v.inline);
        v_size := greatest(v_size, v.pos + v.length);
    END LOOP;
END $$;

-- Ends inodes that lost their last name in a batch, as `drop_link` and `drop_directory` do for one.
CREATE FUNCTION wrkfs.apply_removals(
    a_session bigint, a_ino bigint[], a_parent bigint[], a_name bytea[], a_at bigint[],
    a_before bigint[]
) RETURNS wrkfs.freed LANGUAGE plpgsql AS $$
DECLARE
    r wrkfs.freed;
    v_trash boolean := wrkfs.has_trash();
    v_open bigint[] := ARRAY(SELECT DISTINCT s.ino FROM sustained s WHERE s.ino = ANY (a_ino));
    v_closed bigint[];
BEGIN
    DELETE FROM lease l WHERE l.ino = ANY (a_ino) AND l.session_id = a_session;
    DELETE FROM delegation d WHERE d.ino = ANY (a_ino) AND d.session_id = a_session;
    IF NOT v_trash THEN
        r := wrkfs.free_inodes(
            ARRAY(SELECT g.ino FROM unnest(a_ino) AS g (ino) WHERE NOT g.ino = ANY (v_open)));
        UPDATE inode i SET nlink = 0, ctime = g.at, parent = 0
        FROM unnest(a_ino, a_at) AS g (ino, at) WHERE i.ino = g.ino;
        RETURN r;
    END IF;
    SELECT coalesce(sum(i.size - i.holes - i.borrowed) FILTER (WHERE i.mode >> 12 = 8), 0),
        count(*), array_agg(i.ino)
    INTO r.bytes, r.inodes, v_closed
    FROM inode i WHERE i.ino = ANY (a_ino) AND NOT i.ino = ANY (v_open);
    PERFORM wrkfs.hand_over(v_closed);
    INSERT INTO trash (parent, name, ino, bytes, deleted_at, dir_mtime)
    SELECT g.parent, g.name, g.ino,
        CASE WHEN i.mode >> 12 = 8 AND NOT g.ino = ANY (v_open)
            THEN i.size - i.holes - i.borrowed ELSE 0 END,
        wrkfs.moment(g.at), g.before
    FROM unnest(a_ino, a_parent, a_name, a_at, a_before) AS g (ino, parent, name, at, before)
    JOIN inode i ON i.ino = g.ino;
    UPDATE inode i SET nlink = 0, ctime = g.at, parent = g.parent
    FROM unnest(a_ino, a_parent, a_at) AS g (ino, parent, at) WHERE i.ino = g.ino;
    RETURN r;
END $$;

-- Gives a session the leases and delegations of the new directories in a batch.
CREATE FUNCTION wrkfs.apply_grants(a_session bigint, a_seq bigint, a_fresh bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH made AS (
        SELECT i.ino FROM inode i WHERE i.ino = ANY (a_fresh) AND i.mode >> 12 = 4
    ), leased AS (
        INSERT INTO lease (ino, session_id, taken_at, number)
        SELECT m.ino, a_session, clock_timestamp(), 0 FROM made m
        ON CONFLICT DO NOTHING
    )
    INSERT INTO delegation (ino, session_id) SELECT m.ino, a_session FROM made m
    ON CONFLICT DO NOTHING;
END $$;
