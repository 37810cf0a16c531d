-- Collection: who may collect, what past passes found, sessions, uploads on their way out, and what failed.

-- One row. The number of the newest pass is also the fence: whoever finds another number than his own has lost the lease.
-- A migration that adds a table of roots adds 1 to it, so that no collector goes on that does not know the table.
CREATE TABLE gc (
    one         integer PRIMARY KEY CHECK (one = 1),
    pass        integer NOT NULL,
    holder      text,
    lease_until integer NOT NULL
);
INSERT INTO gc (one, pass, lease_until) VALUES (1, 0, 0);

-- What each pass did, over all tenants. Times are the database's.
CREATE TABLE gc_run (
    pass        integer PRIMARY KEY,
    holder      text NOT NULL,
    started_at  integer NOT NULL,
    finished_at integer,
    state       text NOT NULL CHECK (state IN ('running', 'finished', 'aborted')),
    reason      text,
    expired     integer NOT NULL DEFAULT 0,
    total       integer NOT NULL DEFAULT 0,
    referenced  integer NOT NULL DEFAULT 0,
    doomed      integer NOT NULL DEFAULT 0,
    cleared     integer NOT NULL DEFAULT 0,
    deleted     integer NOT NULL DEFAULT 0,
    bytes       integer NOT NULL DEFAULT 0,
    claimed     integer NOT NULL DEFAULT 0,
    objects     integer NOT NULL DEFAULT 0
);

-- What the newest pass that went through found in each tenant: the next one is compared with it.
CREATE TABLE gc_count (
    tenant     integer PRIMARY KEY,
    pass       integer NOT NULL,
    total      integer NOT NULL,
    referenced integer NOT NULL
);

-- Writers that need several transactions: nothing that was doomed since the oldest of them began is deleted.
CREATE TABLE session (
    tenant      integer NOT NULL,
    id          blob NOT NULL,
    opened_pass integer NOT NULL,
    touched_at  integer NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Requests to collect one upload: never a block. A waiting one is somebody's until visible_at has passed.
CREATE TABLE gc_failure (
    id         integer PRIMARY KEY AUTOINCREMENT,
    tenant     integer NOT NULL,
    upload     blob NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('commit', 'delete')),
    state      text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'dead')),
    attempts   integer NOT NULL DEFAULT 0,
    visible_at integer NOT NULL,
    created_at integer NOT NULL,
    error      text,
    UNIQUE (tenant, upload)
);
CREATE INDEX gc_failure_waiting ON gc_failure (state, visible_at);

-- Every object that was deleted, and why. Pass 0: outside of a pass.
CREATE TABLE gc_audit (
    id         integer PRIMARY KEY AUTOINCREMENT,
    pass       integer NOT NULL,
    at         integer NOT NULL,
    tenant     integer NOT NULL,
    upload     blob NOT NULL,
    object_key text NOT NULL,
    size       integer NOT NULL,
    reason     text NOT NULL
);

-- A claim says when and from which state; deleted_at is set once the object is gone.
ALTER TABLE upload ADD COLUMN claimed_at integer;
ALTER TABLE upload ADD COLUMN claimed_from text CHECK (claimed_from IN ('temp', 'ready'));
ALTER TABLE upload ADD COLUMN deleted_at integer;
CREATE INDEX upload_unfinished ON upload (state, created_at) WHERE state <> 'ready';

-- In the order in which blocks are scanned, and with all that the scan asks.
DROP INDEX block_doomed;
CREATE INDEX block_doomed ON block (tenant, id, doomed) WHERE doomed IS NOT NULL;
