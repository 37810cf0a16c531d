-- Runs of workflows: where each stands, what its segments and tasks came to, and which effects were begun and done.

-- Microseconds since 1970-01-01Z; SQLite counts milliseconds.
CREATE VIEW moment AS SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000 AS us;

-- Whoever works on a run is its holder; whoever takes it over raises the fence, and what an earlier holder writes is refused. due_at is when
-- somebody has to look: for a run with a holder, when its lease is over. Times are the database's.
CREATE TABLE run (
    number          integer PRIMARY KEY AUTOINCREMENT,
    tenant          integer NOT NULL REFERENCES tenant,
    execution       text NOT NULL,
    owner           text NOT NULL,
    workflow        text NOT NULL,
    branch          text NOT NULL,
    -- What the document calls itself, and the hash of that.
    name            text NOT NULL,
    document        blob NOT NULL,
    -- The version that it began with, and the one that it stands on.
    born            blob NOT NULL,
    head            blob NOT NULL,
    status          text NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'WAITING_HUMAN', 'COMPLETED', 'FAILED', 'CANCELLED')),
    -- JSON.
    position        text NOT NULL,
    waiting         text,
    error           text,
    options         text NOT NULL,
    incarnation     integer NOT NULL,
    fence           integer NOT NULL,
    holder          text,
    due_at          integer,
    -- When the run as a whole has to be over.
    deadline        integer,
    idempotency_key text,
    fingerprint     blob NOT NULL,
    queue           text NOT NULL,
    priority        integer NOT NULL,
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL,
    ended_at        integer
);
CREATE UNIQUE INDEX run_execution ON run (tenant, execution);
CREATE UNIQUE INDEX run_key ON run (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_workflow ON run (tenant, workflow, number);
CREATE INDEX run_status ON run (tenant, status, number);
CREATE INDEX run_ended ON run (tenant, ended_at) WHERE ended_at IS NOT NULL;

-- One segment that was executed, or is being waited for. The position is that before it ran.
CREATE TABLE run_segment (
    run         integer NOT NULL,
    incarnation integer NOT NULL,
    seq         integer NOT NULL,
    segment     text NOT NULL,
    place       integer NOT NULL,
    iteration   integer NOT NULL,
    position    text NOT NULL,
    status      text NOT NULL CHECK (status IN ('CONTINUE', 'COMPLETE', 'PAUSED', 'FAILED')),
    input       blob NOT NULL,
    output      blob NOT NULL,
    attempts    integer NOT NULL,
    error       text,
    started_at  integer NOT NULL,
    ended_at    integer NOT NULL,
    PRIMARY KEY (run, incarnation, seq)
) WITHOUT ROWID;

-- What a branch or an item of a segment came to.
CREATE TABLE run_task (
    run         integer NOT NULL,
    incarnation integer NOT NULL,
    seq         integer NOT NULL,
    item        integer NOT NULL,
    status      text NOT NULL CHECK (status IN ('DONE', 'FAILED')),
    -- The tree of its result.
    root        blob,
    error       text,
    attempts    integer NOT NULL,
    PRIMARY KEY (run, incarnation, seq, item)
) WITHOUT ROWID;

-- Something that a run does outside of its own commits: begun (intent), and done or failed. A small result stands here, a larger one is a tree.
CREATE TABLE effect (
    run         integer NOT NULL,
    incarnation integer NOT NULL,
    key         text NOT NULL,
    state       text NOT NULL CHECK (state IN ('intent', 'done', 'failed')),
    result      blob,
    body        blob,
    attempts    integer NOT NULL,
    begun_at    integer NOT NULL,
    ended_at    integer,
    PRIMARY KEY (run, incarnation, key)
) WITHOUT ROWID;

-- Tables of roots were added: no collector that does not know them may go on, if there has been one.
UPDATE gc SET pass = pass + 1 WHERE pass > 0;
