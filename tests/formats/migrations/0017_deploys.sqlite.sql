-- Deploys: documents on their way from the ingest to readers and sinks, each with the history of its states.

-- Which of the states may follow which is in catalog/deploy_states.py; every move compares the state that it leaves. Times are of whoever
-- writes. A deploy that is over has finished_at; a retry takes it away again.
CREATE TABLE deploy (
    number          integer PRIMARY KEY AUTOINCREMENT,
    tenant          integer NOT NULL REFERENCES tenant,
    id              text NOT NULL,
    entity          integer NOT NULL,
    version         integer NOT NULL,
    -- Whether the version was made for this deploy: if not, the newest one had the same content.
    created         integer NOT NULL,
    state           text NOT NULL CHECK (state IN ('QUEUED', 'RUNNING', 'READY', 'SINKING', 'DONE', 'FAILED')),
    compiling       text NOT NULL CHECK (compiling IN ('sync', 'async')),
    -- JSON list of ids of sink rules; NULL: every one that matches.
    ship            text,
    cutover         text NOT NULL CHECK (cutover IN ('ready', 'done')),
    -- 1, and one more for every retry.
    attempt         integer NOT NULL DEFAULT 1,
    -- The event that has it compiled.
    event           text NOT NULL,
    -- The count of what the entity ships when it was compiled.
    ship_seq        integer,
    -- Whether its version came to be served by it or before it; the newer version, where that was not to be.
    served          integer NOT NULL DEFAULT 0,
    superseded_by   integer,
    -- JSON: why it failed; what the compile did and which sinks it asked.
    error           text,
    report          text,
    idempotency_key text,
    fingerprint     blob,
    created_at      integer NOT NULL,
    updated_at      integer NOT NULL,
    finished_at     integer,
    -- In this order: ids are also looked up without a tenant.
    UNIQUE (id, tenant)
);
CREATE UNIQUE INDEX deploy_idempotency ON deploy (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX deploy_listed ON deploy (tenant, number);
CREATE INDEX deploy_of_entity ON deploy (entity, number);
CREATE INDEX deploy_in_state ON deploy (tenant, state, number);
CREATE INDEX deploy_open ON deploy (entity, number) WHERE finished_at IS NULL;
CREATE INDEX deploy_finished ON deploy (finished_at) WHERE finished_at IS NOT NULL;

-- A sink that a deploy waits for, or waited for. `answered_seq` is what it had taken when it answered.
CREATE TABLE deploy_sink (
    deploy       integer NOT NULL,
    rule         text NOT NULL,
    state        text NOT NULL CHECK (state IN ('WAITING', 'ANSWERED', 'FAILED')),
    ship_seq     integer NOT NULL,
    answered_seq integer,
    reason       text,
    asked_at     integer NOT NULL,
    answered_at  integer,
    PRIMARY KEY (deploy, rule)
) WITHOUT ROWID;

-- Every transition there was.
CREATE TABLE deploy_step (
    deploy  integer NOT NULL,
    place   integer NOT NULL,
    before  text,
    state   text NOT NULL,
    attempt integer NOT NULL,
    reason  text,
    at      integer NOT NULL,
    PRIMARY KEY (deploy, place)
) WITHOUT ROWID;

-- While a version that is compiled waits to be served, an entity has the entries of both: 0 is of both, 1 of the newest compiled version only,
-- 2 of the served one only. Readers are given 0 and 2; whoever looks for dependants takes all.
ALTER TABLE index_entry ADD COLUMN waiting integer NOT NULL DEFAULT 0;
