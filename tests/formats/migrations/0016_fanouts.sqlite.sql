-- Fanouts: for each entity whose slices others join, how far those others have followed its newest change.

-- The fanout under way, or the last one that there was. It is held by whoever goes on with it, before anything else is.
CREATE TABLE fanout (
    entity      integer PRIMARY KEY,
    tenant      integer NOT NULL,
    status      text NOT NULL CHECK (status IN ('QUEUED', 'RUNNING', 'DEFERRED', 'DONE')),
    -- The newest version that was told of.
    version     integer NOT NULL,
    -- How many changes were told, and how many of them the pass under way covers.
    asked       integer NOT NULL,
    seen        integer NOT NULL,
    -- Grows with every page, and never begins anew: an event that says to go on names the step that it is meant for.
    step        integer NOT NULL,
    passes      integer NOT NULL,
    -- JSON: how far each dependency is, and its counts.
    progress    text NOT NULL,
    affected    integer NOT NULL,
    processed   integer NOT NULL,
    skipped     integer NOT NULL,
    failed      integer NOT NULL,
    -- Why a part of it is left for later.
    alert       text,
    priority    integer NOT NULL,
    started_at  integer NOT NULL,
    updated_at  integer NOT NULL,
    finished_at integer
);
-- Those under way, and those with an alert, a page at a time.
CREATE INDEX fanout_under_way ON fanout (entity) WHERE finished_at IS NULL;
CREATE INDEX fanout_alerts ON fanout (entity) WHERE alert IS NOT NULL;
-- By age, for housekeeping.
CREATE INDEX fanout_finished ON fanout (finished_at) WHERE finished_at IS NOT NULL;
