-- Deploys: documents on their way from the ingest to readers and sinks, each with the history of its states.

-- Which of the states may follow which is in catalog/deploy_states.py; every move compares the state that it leaves. Times are of whoever
-- writes. A deploy that is over has finished_at; a retry takes it away again.
CREATE TABLE deploy (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL REFERENCES tenant,
    id              text COLLATE "C" NOT NULL,
    entity          bigint NOT NULL,
    version         bigint NOT NULL,
    -- Whether the version was made for this deploy: if not, the newest one had the same content.
    created         boolean NOT NULL,
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
    ship_seq        bigint,
    -- Whether its version came to be served by it or before it; the newer version, where that was not to be.
    served          boolean NOT NULL DEFAULT false,
    superseded_by   bigint,
    -- JSON: why it failed; what the compile did and which sinks it asked.
    error           text,
    report          text,
    idempotency_key text COLLATE "C",
    fingerprint     bytea,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    finished_at     bigint,
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
    deploy       bigint NOT NULL,
    rule         text COLLATE "C" NOT NULL,
    state        text NOT NULL CHECK (state IN ('WAITING', 'ANSWERED', 'FAILED')),
    ship_seq     bigint NOT NULL,
    answered_seq bigint,
    reason       text,
    asked_at     bigint NOT NULL,
    answered_at  bigint,
    PRIMARY KEY (deploy, rule)
);

-- Every transition there was.
CREATE TABLE deploy_step (
    deploy  bigint NOT NULL,
    place   integer NOT NULL,
    before  text,
    state   text NOT NULL,
    attempt integer NOT NULL,
    reason  text,
    at      bigint NOT NULL,
    PRIMARY KEY (deploy, place)
);

-- While a version that is compiled waits to be served, an entity has the entries of both: 0 is of both, 1 of the newest compiled version only,
-- 2 of the served one only. Readers are given 0 and 2; whoever looks for dependants takes all.
ALTER TABLE index_entry ADD COLUMN waiting smallint NOT NULL DEFAULT 0;
