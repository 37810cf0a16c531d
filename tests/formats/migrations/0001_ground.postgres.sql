-- The ground: tenants, blocks, manifests, heads, journal, uploads, idempotency, outbox.

-- One row: what tells this store from every other, wherever it is moved or copied to.
CREATE TABLE store (
    id text NOT NULL PRIMARY KEY
);
INSERT INTO store (id) VALUES (replace(gen_random_uuid()::text, '-', ''));

CREATE TABLE tenant (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE upload (
    tenant     integer NOT NULL REFERENCES tenant,
    id         bytea NOT NULL,
    state      text NOT NULL CHECK (state IN ('temp', 'ready', 'deleting')),
    object_key text NOT NULL,
    size       bigint NOT NULL,
    created_at bigint NOT NULL,
    owner      text,
    workflow   text,
    execution  text,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE block (
    tenant        integer NOT NULL,
    id            bytea NOT NULL,
    size          integer NOT NULL,
    codec         integer NOT NULL,
    body          bytea,
    upload        bytea,
    object_offset bigint,
    object_length integer,
    links         bytea,
    doomed        bigint,
    PRIMARY KEY (tenant, id),
    CHECK ((body IS NULL) <> (upload IS NULL))
);
ALTER TABLE block ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE INDEX block_upload ON block (tenant, upload) WHERE upload IS NOT NULL;
CREATE INDEX block_doomed ON block (doomed) WHERE doomed IS NOT NULL;

CREATE TABLE manifest (
    tenant     integer NOT NULL,
    id         bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    version    bigint NOT NULL,
    parent     bytea,
    root       bytea NOT NULL,
    created_at bigint NOT NULL,
    execution  text,
    segment    bigint,
    message    text,
    PRIMARY KEY (tenant, id),
    -- Not tenant first: a plan made while the table is empty would as soon look up (tenant, id) here, reading every row.
    UNIQUE (owner, workflow, branch, tenant, version)
);

-- The versions of one execution, without reading those of all others.
CREATE INDEX manifest_execution ON manifest (owner, workflow, branch, tenant, execution, version)
    WHERE execution IS NOT NULL;

CREATE TABLE head (
    tenant      integer NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    branch      text NOT NULL,
    manifest    bytea NOT NULL,
    version     bigint NOT NULL,
    journal_seq bigint NOT NULL,
    journal_tip bytea NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);

CREATE TABLE journal (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    seq        bigint NOT NULL,
    kind       text NOT NULL,
    manifest   bytea,
    body       bytea NOT NULL,
    hash       bytea NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch, seq)
);

CREATE TABLE idempotency (
    tenant      integer NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    manifest    bytea NOT NULL,
    receipt     bytea NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, key)
);

CREATE TABLE lane (
    tenant        integer NOT NULL,
    aggregatetype text NOT NULL,
    aggregateid   text NOT NULL,
    next_seq      bigint NOT NULL,
    due_at        bigint,
    fence         bigint NOT NULL DEFAULT 0,
    lease_until   bigint,
    parked        boolean NOT NULL DEFAULT false,
    priority      integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, aggregatetype, aggregateid)
);
CREATE INDEX lane_due ON lane (priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;

CREATE TABLE outbox (
    id              text NOT NULL,
    tenant          integer NOT NULL,
    aggregatetype   text NOT NULL,
    aggregateid     text NOT NULL,
    seq             bigint NOT NULL,
    type            text NOT NULL,
    payload         bytea NOT NULL,
    idempotency_key text,
    status          text NOT NULL DEFAULT 'PENDING'
                    CHECK (status IN ('PENDING', 'PROCESSING', 'PROCESSED', 'FAILED', 'DEAD')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at bigint,
    failure_reason  text,
    priority        integer NOT NULL DEFAULT 0,
    created_at      bigint NOT NULL,
    processed_at    bigint,
    trace           text,
    PRIMARY KEY (tenant, id),
    UNIQUE (tenant, aggregatetype, aggregateid, seq)
);

-- Called where a commit finds that it must not happen, inside its one statement: raising is what undoes the rest of it.
CREATE FUNCTION analemma_abort(code text, reason text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = reason;
END
$$;
