-- Version 4: leases are numbered. Comments stand in schema.sql.
ALTER TABLE lease ADD COLUMN number bigint NOT NULL DEFAULT 0;
