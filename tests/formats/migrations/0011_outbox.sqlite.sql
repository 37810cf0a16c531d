-- What delivery needs to know of a lane: how far it came, when the next try is due, and whether a worker died in it.

-- Everything up to here is settled: delivered, or given up by a person. So the next rows of a lane are found without passing those that
-- were processed, and whether anything remains is known from the lane's own row.
ALTER TABLE lane ADD COLUMN done_seq integer NOT NULL DEFAULT 0;
-- Not before this time, whatever else arrives: the first row that is left failed.
ALTER TABLE lane ADD COLUMN retry_at integer;
-- A worker died while it held the lane: its rows are tried one at a time, and whoever tries one says so first.
ALTER TABLE lane ADD COLUMN suspect integer NOT NULL DEFAULT 0;

CREATE INDEX lane_parked ON lane (tenant, aggregatetype, aggregateid) WHERE parked;
CREATE INDEX lane_retrying ON lane (tenant, aggregatetype, aggregateid) WHERE retry_at IS NOT NULL;

-- What is due of one tenant, so that a worker of its own does not pass what is due of all others.
CREATE INDEX lane_due_of ON lane (tenant, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;

-- By age, for housekeeping.
CREATE INDEX outbox_created ON outbox (created_at);
