-- What a version that was gone back to calls itself, so that its tasks keep their ids: the id of the checkpoint that it repeats, with dashes behind
-- it. Which run stored a checkpoint or a write, so that another one that read the same is told. And which channels a checkpoint does not hold whole, as
-- a list in JSON, so that what they are made of is kept; NULL: that is not known.
ALTER TABLE thread_checkpoint ADD COLUMN alias text;
ALTER TABLE thread_checkpoint ADD COLUMN writer text;
ALTER TABLE thread_checkpoint ADD COLUMN deltas text;
ALTER TABLE thread_write ADD COLUMN writer text;
CREATE INDEX thread_checkpoint_alias ON thread_checkpoint (alias, owner, tenant) WHERE alias IS NOT NULL;
