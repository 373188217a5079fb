ALTER TABLE boxd.box ADD COLUMN runtime text NOT NULL DEFAULT '';
ALTER TABLE boxd.box ADD COLUMN containers boolean NOT NULL DEFAULT false;
ALTER TABLE boxd.snapshot ADD COLUMN runtime text NOT NULL DEFAULT '';
ALTER TABLE boxd.snapshot ADD COLUMN containers boolean NOT NULL DEFAULT false;
