ALTER TABLE boxd.ask ADD COLUMN asker text;
