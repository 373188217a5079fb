ALTER TABLE boxd.box ADD COLUMN profile text;
ALTER TABLE boxd.snapshot ADD COLUMN profile text;
