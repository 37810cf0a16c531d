-- Backfills: work on a whole scope of entities that outlives whoever does it.

-- One that runs has a holder; whoever takes it over raises the fence, and what an earlier holder writes is refused. Times are the
-- database's.
CREATE TABLE backfill (
    number      integer PRIMARY KEY AUTOINCREMENT,
    tenant      integer NOT NULL REFERENCES tenant,
    id          text NOT NULL UNIQUE,
    kind        text NOT NULL CHECK (kind IN ('raw_to_slice', 'slice_to_sink', 'full', 'dead_letters')),
    -- JSON: what it goes through, how, and what was known when it was planned.
    scope       text NOT NULL,
    options     text NOT NULL,
    plan        text NOT NULL,
    state       text NOT NULL CHECK (state IN ('PLANNED', 'RUNNING', 'PAUSED', 'CANCELLED', 'DONE', 'FAILED')),
    -- Why it failed, or who paused it.
    reason      text,
    fence       integer NOT NULL DEFAULT 0,
    holder      text,
    lease_until integer,
    created_at  integer NOT NULL,
    started_at  integer,
    finished_at integer
);
CREATE INDEX backfill_listed ON backfill (tenant, number);

-- A range of entities, by their numbers, that one worker at a time goes through in order. Everything up to the cursor is done and counted;
-- it moves in the transaction that does it, and only from the step that the worker saw.
CREATE TABLE backfill_shard (
    backfill   integer NOT NULL,
    shard      integer NOT NULL,
    -- Those of a level begin when all below are finished: what is joined comes first.
    level      integer NOT NULL,
    type       text NOT NULL,
    first      integer NOT NULL,
    last       integer NOT NULL,
    total      integer NOT NULL,
    -- JSON: an entity's number and version, or a lane.
    cursor     text NOT NULL,
    step       integer NOT NULL DEFAULT 0,
    finished   integer NOT NULL DEFAULT 0,
    done       integer NOT NULL DEFAULT 0,
    changed    integer NOT NULL DEFAULT 0,
    slices     integer NOT NULL DEFAULT 0,
    tombstones integer NOT NULL DEFAULT 0,
    requested  integer NOT NULL DEFAULT 0,
    failed     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (backfill, shard)
) WITHOUT ROWID;

-- The first few that failed in each shard.
CREATE TABLE backfill_error (
    backfill integer NOT NULL,
    shard    integer NOT NULL,
    step     integer NOT NULL,
    place    integer NOT NULL,
    entity   text NOT NULL,
    kind     text NOT NULL,
    reason   text NOT NULL,
    PRIMARY KEY (backfill, shard, step, place)
) WITHOUT ROWID;
