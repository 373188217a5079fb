ALTER TABLE boxd.volume ADD COLUMN trashed_until timestamptz;
DROP INDEX boxd.volume_workspace;
CREATE UNIQUE INDEX volume_workspace ON boxd.volume (owner, coalesce(workspace, ''))
    WHERE trashed_until IS NULL;
