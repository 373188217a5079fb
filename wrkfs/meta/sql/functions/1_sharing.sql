-- Sharing of slices between inodes: which of them counts in the usage.
--
-- A clone shares the slices of its source. The refs of the clone are *borrowed*: the clone does not
-- count the bytes that only borrowed refs cover (`inode.borrowed`), because the source counts them.
-- When the source loses such a slice, or moves to the trash, no counted inode counts the slice. Then
-- the slice gets a row in `shared_slice`, which counts its whole size, until its last ref goes. So
-- the usage never shrinks while a clone keeps the bytes, and no call searches for the other owner.
--
-- `usage.shared` is the sum of `shared_slice`. The lock of that row orders the calls that drop refs
-- of one shared slice at the same time: otherwise each would see the ref of the other one. A call
-- takes this lock after those of inodes, and waits for no inode afterwards.

-- Returns true for the inode numbers of snapshots. From 2^52 on no number belongs to a file that can
-- change: counter 'id' stays below, and counter 'snapshot' starts there.
CREATE FUNCTION wrkfs.is_read_only(a_ino bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT a_ino >= 4503599627370496
$$;

-- Returns the number of the directory `.snapshots` of the root.
CREATE FUNCTION wrkfs.snapshots_ino() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT 4503599627370496
$$;

-- Returns the bytes in [a_start, a_end) of a file that its own refs cover: those not borrowed.
CREATE FUNCTION wrkfs.owned(a_ino bigint, a_start bigint, a_end bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_bytes bigint;
BEGIN
    SELECT coalesce(sum(upper(c.part) - lower(c.part)), 0) INTO v_bytes FROM (
        SELECT unnest(range_agg(
            int8range(greatest(s.pos, a_start), least(s.pos + s.length, a_end)))) AS part
        FROM slice s
        WHERE s.inode = a_ino AND s.chunk BETWEEN a_start >> 26 AND (a_end - 1) >> 26
            AND s.pos < a_end AND s.pos + s.length > a_start AND NOT s.borrowed
    ) c;
    RETURN v_bytes;
END $$;

-- Returns the bytes in [a_start, a_end) of a file that only borrowed refs cover.
CREATE FUNCTION wrkfs.borrowed(a_ino bigint, a_start bigint, a_end bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF a_start >= a_end THEN RETURN 0; END IF;
    RETURN wrkfs.covered(a_ino, a_start, a_end) - wrkfs.owned(a_ino, a_start, a_end);
END $$;

-- Settles slices that lost refs while other inodes used them, or that were borrowed. Those with
-- borrowed refs only count in `shared_slice` from now on; those without refs no longer do. Returns
-- the slices without refs, which the caller releases.
CREATE FUNCTION wrkfs.settle_shared(a_ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_unused bigint[];
    v_bytes bigint;
BEGIN
    PERFORM 1 FROM usage u FOR NO KEY UPDATE;
    -- The next statements see what calls that held the lock before have committed.
    SELECT array_agg(DISTINCT g.id) INTO v_unused FROM unnest(a_ids) AS g (id)
    WHERE NOT EXISTS (SELECT 1 FROM slice s WHERE s.slice_id = g.id);
    WITH gone AS (
        DELETE FROM shared_slice h WHERE h.slice_id = ANY (v_unused) RETURNING h.bytes
    ), kept AS (
        INSERT INTO shared_slice (slice_id, bytes)
        SELECT s.slice_id, min(s.size) FROM slice s WHERE s.slice_id = ANY (a_ids)
        GROUP BY s.slice_id HAVING bool_and(s.borrowed)
        ON CONFLICT DO NOTHING RETURNING bytes
    )
    SELECT coalesce((SELECT sum(k.bytes) FROM kept k), 0)
        - coalesce((SELECT sum(g.bytes) FROM gone g), 0) INTO v_bytes;
    IF v_bytes <> 0 THEN UPDATE usage u SET shared = u.shared + v_bytes; END IF;
    RETURN coalesce(v_unused, '{}');
END $$;

-- Returns the slices of inodes that count them, while other inodes have borrowed them.
CREATE FUNCTION wrkfs.lent(a_inos bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM 1 FROM slice b WHERE b.borrowed LIMIT 1;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN (SELECT array_agg(DISTINCT s.slice_id) FROM slice s
        WHERE s.inode = ANY (a_inos) AND NOT s.borrowed
            AND EXISTS (SELECT 1 FROM slice b WHERE b.slice_id = s.slice_id AND b.borrowed));
END $$;

-- Lets locked inodes count only what no other inode uses, before they move to the trash, which does
-- not count: the slices that others have borrowed from them count in `shared_slice` from now on.
CREATE FUNCTION wrkfs.hand_over(a_inos bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[] := wrkfs.lent(a_inos);
BEGIN
    IF v_ids IS NULL THEN RETURN; END IF;
    PERFORM 1 FROM usage u FOR NO KEY UPDATE;
    v_ids := wrkfs.lent(a_inos);
    IF v_ids IS NULL THEN RETURN; END IF;
    UPDATE slice s SET borrowed = true WHERE s.inode = ANY (a_inos) AND s.slice_id = ANY (v_ids);
    UPDATE inode i SET borrowed = wrkfs.borrowed(i.ino, 0, i.size)
    WHERE i.ino = ANY (a_inos) AND i.mode >> 12 = 8;
    PERFORM wrkfs.settle_shared(v_ids);
END $$;

-- Pauses all changes of the volume until the transaction ends, after waiting for those in progress:
-- it holds the slots of all sessions, and the counter that a new session needs. What follows sees
-- one state of every tree, without locks on its inodes. Such calls run one at a time. The order of
-- the locks is that of `repair_use`.
CREATE FUNCTION wrkfs.pause_changes() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM counter c WHERE c.kind = 'session' FOR NO KEY UPDATE;
    PERFORM 1 FROM op_result o ORDER BY o.session_id, o.slot FOR NO KEY UPDATE;
END $$;
