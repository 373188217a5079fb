ALTER TABLE boxd.profile ADD COLUMN durable boolean NOT NULL DEFAULT false;
