-- Runs that others wait for, queues with limits, and schedules.

-- The run that began this one and waits for it.
ALTER TABLE run ADD COLUMN parent integer;
CREATE INDEX run_parent ON run (parent) WHERE parent IS NOT NULL;
-- When somebody first took it, and how long it may take from then on: its deadline, once it has begun.
ALTER TABLE run ADD COLUMN begun_at integer;
ALTER TABLE run ADD COLUMN time_limit integer;

-- Runs of no queue are looked for by when they are due; those of a queue, in the order of their lane, so that what waits costs nobody anything.
-- What a run that has begun waits for goes with those that have begun. Every run of a queue is in one of the two indexes, so that they also
-- say whether a lane is in use.
DROP INDEX run_due;
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL AND queue = '';
CREATE INDEX run_queued ON run (tenant, queue, priority, due_at, number)
    WHERE queue <> '' AND status = 'PENDING' AND parent IS NULL;
CREATE INDEX run_begun ON run (tenant, queue, priority, due_at, number)
    WHERE queue <> '' AND (status <> 'PENDING' OR parent IS NOT NULL);
-- Who has a place in a queue: whoever holds a run, until the lease is over.
CREATE INDEX run_held ON run (tenant, queue, due_at) WHERE holder IS NOT NULL AND queue <> '';

-- The limits of a queue; one that has none has no row. `started` counts the runs that were begun under a rate.
CREATE TABLE run_queue (
    tenant      integer NOT NULL REFERENCES tenant,
    name        text NOT NULL,
    -- How many runs may be worked on at a time.
    concurrency integer,
    -- How many may begin within a period, in microseconds.
    rate        integer,
    period      integer,
    started     integer NOT NULL,
    updated_at  integer NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- When the last runs of a queue with a rate began: no more of them than the rate counts.
CREATE TABLE run_start (
    tenant integer NOT NULL,
    queue  text NOT NULL,
    seq    integer NOT NULL,
    at     integer NOT NULL,
    PRIMARY KEY (tenant, queue, seq)
) WITHOUT ROWID;

-- The priorities that the runs of a queue have, or had.
CREATE TABLE run_lane (
    tenant   integer NOT NULL,
    queue    text NOT NULL,
    priority integer NOT NULL,
    PRIMARY KEY (tenant, queue, priority)
) WITHOUT ROWID;
INSERT INTO run_lane (tenant, queue, priority) SELECT DISTINCT tenant, queue, priority FROM run WHERE queue <> '';

-- What is to be run when. next_at is the next tick, look_at when somebody has to look, which is later after something went wrong. A revision is
-- another definition.
CREATE TABLE schedule (
    tenant     integer NOT NULL REFERENCES tenant,
    name       text NOT NULL,
    -- JSON.
    document   text NOT NULL,
    definition text NOT NULL,
    revision   integer NOT NULL,
    paused     integer NOT NULL,
    next_at    integer,
    look_at    integer,
    last_at    integer,
    error      text,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX schedule_look ON schedule (look_at) WHERE look_at IS NOT NULL;
