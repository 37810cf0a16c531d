-- The ledger: deltas that were acknowledged and are yet to become versions, and what became of those that were.

-- The order of a branch's entries is that of their commits: a number is taken under the branch's advisory lock.
CREATE TABLE ledger (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL,
    owner           text NOT NULL,
    workflow        text NOT NULL,
    branch          text NOT NULL,
    secret          bytea NOT NULL,
    created_at      bigint NOT NULL,
    idempotency_key text,
    fingerprint     bytea,
    codec           integer NOT NULL,
    size            bigint NOT NULL,
    digest          bytea NOT NULL,
    stored          bigint NOT NULL,
    body            bytea NOT NULL
);
-- Bodies are compressed already.
ALTER TABLE ledger ALTER COLUMN body SET STORAGE EXTERNAL;
-- Not tenant first: a plan made while the table is empty would as soon look up a place here, reading every entry of the tenant.
CREATE INDEX ledger_branch ON ledger (owner, workflow, branch, tenant, seq);
CREATE INDEX ledger_key ON ledger (owner, workflow, idempotency_key, tenant) WHERE idempotency_key IS NOT NULL;

-- Apart from the ledger, so that a save that looks for pending entries looks into a table that is nearly always empty.
-- Committed: has a receipt. Failed: has a failure, and still the delta.
CREATE TABLE ticket (
    seq        bigint PRIMARY KEY,
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    secret     bytea NOT NULL,
    settled_at bigint NOT NULL,
    receipt    bytea,
    failure    text,
    codec      integer,
    size       bigint,
    digest     bytea,
    body       bytea,
    CHECK ((receipt IS NULL) <> (failure IS NULL))
);
ALTER TABLE ticket ALTER COLUMN body SET STORAGE EXTERNAL;
